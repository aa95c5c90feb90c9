"""A version keeps the result of its parity self-test."""

import sqlalchemy as sa
from alembic import op

revision = "0015_adapter_parity"
down_revision = "0014_row_security"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("adapter") as batch_op:
        batch_op.add_column(sa.Column("parity", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("adapter") as batch_op:
        batch_op.drop_column("parity")
