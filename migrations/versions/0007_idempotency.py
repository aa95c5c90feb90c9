"""Answers of requests with an Idempotency-Key."""

import sqlalchemy as sa
from alembic import op

revision = "0007_idempotency"
down_revision = "0006_people"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "idempotent_request",
        sa.Column("caller_id", sa.String(), nullable=False),
        sa.Column("route", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("headers", sa.JSON(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("caller_id", "route", "key", name=op.f("pk_idempotent_request")),
    )
    with op.batch_alter_table("idempotent_request") as batch_op:
        batch_op.create_index("ix_idempotent_request_started_at", ["started_at"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("idempotent_request") as batch_op:
        batch_op.drop_index("ix_idempotent_request_started_at")

    op.drop_table("idempotent_request")
