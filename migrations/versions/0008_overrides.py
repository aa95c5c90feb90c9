"""Limits that hold for a while."""

import sqlalchemy as sa
from alembic import op

revision = "0008_overrides"
down_revision = "0007_idempotency"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "limit_override",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("level", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("dimension", sa.String(), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenant.id"], name=op.f("fk_limit_override_tenant_id")
        ),
        sa.PrimaryKeyConstraint("level", "subject", "dimension", name=op.f("pk_limit_override")),
    )
    with op.batch_alter_table("limit_override") as batch_op:
        batch_op.create_index("ix_limit_override_tenant_id", ["tenant_id"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("limit_override") as batch_op:
        batch_op.drop_index("ix_limit_override_tenant_id")

    op.drop_table("limit_override")
