"""Sessions end when nobody uses them; what the console reads of all tenants has indexes."""

import sqlalchemy as sa
from alembic import op

revision = "0016_console"
down_revision = "0015_adapter_parity"
branch_labels = None
depends_on = None

INDEXES = {
    "batch": (["created_at", "id"],),
    "budget_alert": (["created_at"],),
    "latency_minute": (["bucket"],),
    "rejection_count": (["minute"],),
    "tenant": (["state", "id"], ["plan_id", "id"]),
    "usage_minute": (["bucket"],),
    "usage_quarter": (["bucket"],),
    "webhook_delivery": (["webhook_id", "id"],),
}


def upgrade() -> None:
    op.execute("DELETE FROM login_session")  # whoever is signed in signs in again
    with op.batch_alter_table("login_session") as batch_op:
        batch_op.add_column(sa.Column("last_seen_at", sa.DateTime(timezone=True), nullable=False))
    op.drop_index("ix_webhook_delivery_webhook_id", "webhook_delivery")
    for table, indexes in INDEXES.items():
        for columns in indexes:
            op.create_index(f"ix_{table}_{'_'.join(columns)}", table, columns)


def downgrade() -> None:
    for table, indexes in INDEXES.items():
        for columns in indexes:
            op.drop_index(f"ix_{table}_{'_'.join(columns)}", table)
    op.create_index("ix_webhook_delivery_webhook_id", "webhook_delivery", ["webhook_id"])
    with op.batch_alter_table("login_session") as batch_op:
        batch_op.drop_column("last_seen_at")
