"""Webhooks and their outbox."""

import sqlalchemy as sa
from alembic import op

revision = "0010_webhooks"
down_revision = "0009_prefixes"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "webhook",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("events", sa.JSON(), nullable=False),
        sa.Column("sealed_secret", sa.LargeBinary(), nullable=False),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_webhook_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook")),
    )
    with op.batch_alter_table("webhook") as batch_op:
        batch_op.create_index("ix_webhook_tenant_id", ["tenant_id"], unique=False)

    op.create_table(
        "webhook_delivery",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("webhook_id", sa.String(), nullable=False),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_answer", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenant.id"], name=op.f("fk_webhook_delivery_tenant_id")
        ),
        sa.ForeignKeyConstraint(
            ["webhook_id"],
            ["webhook.id"],
            name=op.f("fk_webhook_delivery_webhook_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_delivery")),
    )
    with op.batch_alter_table("webhook_delivery") as batch_op:
        batch_op.create_index(
            "ix_webhook_delivery_next_attempt_at", ["next_attempt_at"], unique=False
        )
        batch_op.create_index("ix_webhook_delivery_tenant_id", ["tenant_id"], unique=False)
        batch_op.create_index("ix_webhook_delivery_webhook_id", ["webhook_id"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("webhook_delivery") as batch_op:
        batch_op.drop_index("ix_webhook_delivery_webhook_id")
        batch_op.drop_index("ix_webhook_delivery_tenant_id")
        batch_op.drop_index("ix_webhook_delivery_next_attempt_at")

    op.drop_table("webhook_delivery")
    with op.batch_alter_table("webhook") as batch_op:
        batch_op.drop_index("ix_webhook_tenant_id")

    op.drop_table("webhook")
