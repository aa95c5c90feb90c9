"""Prefixes that tenants keep warm, and how many tokens of them."""

import sqlalchemy as sa
from alembic import op

revision = "0009_prefixes"
down_revision = "0008_overrides"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("tenant") as batch_op:
        batch_op.add_column(
            sa.Column("prefix_tokens", sa.Integer(), nullable=False, server_default="4096")
        )
    op.create_table(
        "prefix",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("num_tokens", sa.Integer(), nullable=False),
        sa.Column("token_ids", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_prefix_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_prefix")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_prefix_tenant_id_name")),
    )


def downgrade() -> None:
    op.drop_table("prefix")
    with op.batch_alter_table("tenant") as batch_op:
        batch_op.drop_column("prefix_tokens")
