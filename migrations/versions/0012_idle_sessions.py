"""Sessions end when nobody uses them."""

import sqlalchemy as sa
from alembic import op

revision = "0012_idle_sessions"
down_revision = "0011_adapter_names"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("DELETE FROM login_session")  # whoever is signed in signs in again
    with op.batch_alter_table("login_session") as batch_op:
        batch_op.add_column(sa.Column("last_seen_at", sa.DateTime(timezone=True), nullable=False))


def downgrade() -> None:
    with op.batch_alter_table("login_session") as batch_op:
        batch_op.drop_column("last_seen_at")
