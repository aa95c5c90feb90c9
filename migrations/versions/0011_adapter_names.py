"""Adapters have numbered versions, and names that point at one of them."""

import sqlalchemy as sa
from alembic import op

revision = "0011_adapter_names"
down_revision = "0010_webhooks"
branch_labels = None
depends_on = None

LIVING = sa.text("removed_at IS NULL")
NAMES_OF_LIVING = """
    INSERT INTO adapter_name (tenant_id, name, current, last_number, is_enabled, is_pinned,
                              defaults, created_at, updated_at, revision)
    SELECT tenant_id, name, 1, 1, TRUE, FALSE, '{}', created_at, updated_at, 1
    FROM adapter WHERE removed_at IS NULL
"""
ONLY_CURRENT = """
    UPDATE adapter SET removed_at = CURRENT_TIMESTAMP
    WHERE removed_at IS NULL AND NOT EXISTS (
        SELECT 1 FROM adapter_name AS n
        WHERE n.tenant_id = adapter.tenant_id AND n.name = adapter.name
          AND n.current = adapter.number)
"""


def upgrade() -> None:
    op.create_table(
        "adapter_name",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("current", sa.Integer(), nullable=False),
        sa.Column("previous", sa.Integer(), nullable=True),
        sa.Column("canary", sa.Integer(), nullable=True),
        sa.Column("canary_percent", sa.Integer(), nullable=True),
        sa.Column("last_number", sa.Integer(), nullable=False),
        sa.Column("is_enabled", sa.Boolean(), nullable=False),
        sa.Column("is_pinned", sa.Boolean(), nullable=False),
        sa.Column("defaults", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenant.id"], name=op.f("fk_adapter_name_tenant_id")
        ),
        sa.PrimaryKeyConstraint("tenant_id", "name", name=op.f("pk_adapter_name")),
    )
    with op.batch_alter_table("adapter") as batch_op:
        batch_op.add_column(sa.Column("number", sa.Integer(), nullable=False, server_default="1"))
        batch_op.drop_index("uq_adapter_tenant_id_name")
    with op.batch_alter_table("adapter") as batch_op:
        batch_op.alter_column("number", server_default=None)
        batch_op.create_index(
            "uq_adapter_tenant_id_name_number",
            ["tenant_id", "name", "number"],
            unique=True,
            sqlite_where=LIVING,
            postgresql_where=LIVING,
        )
    op.execute(NAMES_OF_LIVING)


def downgrade() -> None:
    op.execute(ONLY_CURRENT)
    with op.batch_alter_table("adapter") as batch_op:
        batch_op.drop_index("uq_adapter_tenant_id_name_number")
        batch_op.drop_column("number")
        batch_op.create_index(
            "uq_adapter_tenant_id_name",
            ["tenant_id", "name"],
            unique=True,
            sqlite_where=LIVING,
            postgresql_where=LIVING,
        )
    op.drop_table("adapter_name")
