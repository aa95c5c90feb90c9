"""Batch jobs know their Idempotency-Key; a tenant may leave its prefix quota to its plan."""

import sqlalchemy as sa
from alembic import op

revision = "0012_batch_orders"
down_revision = "0011_adapter_names"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("batch") as batch_op:
        batch_op.add_column(sa.Column("idempotency_key", sa.String(), nullable=True))
        batch_op.create_unique_constraint(
            op.f("uq_batch_tenant_id_idempotency_key"), ["tenant_id", "idempotency_key"]
        )
    with op.batch_alter_table("tenant") as batch_op:
        batch_op.alter_column(
            "prefix_tokens", existing_type=sa.Integer(), nullable=True, server_default=None
        )
    op.execute("UPDATE tenant SET prefix_tokens = NULL WHERE prefix_tokens = 4096")


def downgrade() -> None:
    op.execute("UPDATE tenant SET prefix_tokens = 4096 WHERE prefix_tokens IS NULL")
    with op.batch_alter_table("tenant") as batch_op:
        batch_op.alter_column(
            "prefix_tokens", existing_type=sa.Integer(), nullable=False, server_default="4096"
        )
    with op.batch_alter_table("batch") as batch_op:
        batch_op.drop_constraint(op.f("uq_batch_tenant_id_idempotency_key"), type_="unique")
        batch_op.drop_column("idempotency_key")
