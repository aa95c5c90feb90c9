"""Files, batch jobs and their lines."""

import sqlalchemy as sa
from alembic import op

revision = "0005_batches"
down_revision = "0004_billing"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "file",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("filename", sa.String(), nullable=False),
        sa.Column("purpose", sa.String(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("ready_at", MOMENT, nullable=True),
        sa.Column("expires_at", MOMENT, nullable=True),
        sa.Column("deleted_at", MOMENT, nullable=True),
        sa.Column("holds", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_file_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_file")),
    )
    op.create_index("ix_file_tenant_id_created_at_id", "file", ["tenant_id", "created_at", "id"])
    op.create_index("ix_file_expires_at", "file", ["expires_at"])
    op.create_index("ix_file_deleted_at", "file", ["deleted_at"])
    op.create_table(
        "batch",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("rights", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("endpoint", sa.String(), nullable=False),
        sa.Column("completion_window", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=True),
        sa.Column("input_file_id", sa.String(), nullable=False),
        sa.Column("output_file_id", sa.String(), nullable=True),
        sa.Column("error_file_id", sa.String(), nullable=True),
        sa.Column("output_life_s", sa.Integer(), nullable=True),
        sa.Column("request_metadata", sa.JSON(), nullable=True),
        sa.Column("errors", sa.JSON(), nullable=True),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("paused_at", MOMENT, nullable=True),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("completed", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("running", sa.Integer(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("enqueued_tokens", sa.BigInteger(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("in_progress_at", MOMENT, nullable=True),
        sa.Column("expires_at", MOMENT, nullable=False),
        sa.Column("finalizing_at", MOMENT, nullable=True),
        sa.Column("completed_at", MOMENT, nullable=True),
        sa.Column("failed_at", MOMENT, nullable=True),
        sa.Column("expired_at", MOMENT, nullable=True),
        sa.Column("cancelling_at", MOMENT, nullable=True),
        sa.Column("cancelled_at", MOMENT, nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("lease_until", MOMENT, nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_batch_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batch")),
    )
    op.create_index("ix_batch_tenant_id_created_at_id", "batch", ["tenant_id", "created_at", "id"])
    op.create_index("ix_batch_status", "batch", ["status"])
    op.create_table(
        "batch_line",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("batch_id", sa.String(), nullable=False),
        sa.Column("line_no", sa.Integer(), nullable=False),
        sa.Column("custom_id", sa.String(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("num_bytes", sa.Integer(), nullable=False),
        sa.Column("sort_key", sa.LargeBinary(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("not_before", MOMENT, nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("lease_owner", sa.String(), nullable=True),
        sa.Column("lease_until", MOMENT, nullable=True),
        sa.Column("result_id", sa.String(), nullable=True),
        sa.Column("status_code", sa.Integer(), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_batch_line_tenant_id")),
        sa.ForeignKeyConstraint(["batch_id"], ["batch.id"], name=op.f("fk_batch_line_batch_id")),
        sa.PrimaryKeyConstraint("batch_id", "line_no", name=op.f("pk_batch_line")),
    )
    op.create_index(
        "ix_batch_line_claim", "batch_line", ["batch_id", "state", "sort_key", "line_no"]
    )
    op.create_index("ix_batch_line_state_lease_until", "batch_line", ["state", "lease_until"])


def downgrade() -> None:
    op.drop_table("batch_line")
    op.drop_table("batch")
    op.drop_table("file")
