"""Tenants, keys, adapters and usage events."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tenant",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("max_tier", sa.String(), nullable=False),
        sa.Column("max_running", sa.Integer(), nullable=True),
        sa.Column("kv_share", sa.Double(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenant")),
        sa.UniqueConstraint("name", name=op.f("uq_tenant_name")),
    )
    op.create_table(
        "adapter",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("manifest", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("removed_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_adapter_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_adapter")),
    )
    with op.batch_alter_table("adapter") as batch_op:
        batch_op.create_index(
            "uq_adapter_tenant_id_name",
            ["tenant_id", "name"],
            unique=True,
            sqlite_where=sa.text("removed_at IS NULL"),
            postgresql_where=sa.text("removed_at IS NULL"),
        )

    op.create_table(
        "project",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_project_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_project")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_project_tenant_id_name")),
    )
    op.create_table(
        "usage_event",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("request_id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("endpoint", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("adapter_version", sa.String(), nullable=True),
        sa.Column("tier", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("error_code", sa.String(), nullable=True),
        sa.Column("sequences", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("recomputed_tokens", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("queue_s", sa.Double(), nullable=True),
        sa.Column("ttft_s", sa.Double(), nullable=True),
        sa.Column("total_s", sa.Double(), nullable=False),
        sa.Column("engine_s", sa.Double(), nullable=False),
        sa.Column("region", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=True),
        sa.Column("end_user", sa.String(), nullable=True),
        sa.Column("client_request_id", sa.String(), nullable=True),
        sa.Column("request_metadata", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenant.id"], name=op.f("fk_usage_event_tenant_id")
        ),
        sa.PrimaryKeyConstraint("request_id", name=op.f("pk_usage_event")),
    )
    with op.batch_alter_table("usage_event") as batch_op:
        batch_op.create_index("ix_usage_event_ended_at", ["ended_at"], unique=False)
        batch_op.create_index(
            "ix_usage_event_tenant_id_ended_at", ["tenant_id", "ended_at"], unique=False
        )

    op.create_table(
        "api_key",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("pepper_id", sa.String(), nullable=False),
        sa.Column("last_four", sa.String(), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name=op.f("fk_api_key_project_id")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_api_key_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_key")),
    )
    with op.batch_alter_table("api_key") as batch_op:
        batch_op.create_index("ix_api_key_tenant_id", ["tenant_id"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("api_key") as batch_op:
        batch_op.drop_index("ix_api_key_tenant_id")

    op.drop_table("api_key")
    with op.batch_alter_table("usage_event") as batch_op:
        batch_op.drop_index("ix_usage_event_tenant_id_ended_at")
        batch_op.drop_index("ix_usage_event_ended_at")

    op.drop_table("usage_event")
    op.drop_table("project")
    with op.batch_alter_table("adapter") as batch_op:
        batch_op.drop_index(
            "uq_adapter_tenant_id_name",
            sqlite_where=sa.text("removed_at IS NULL"),
            postgresql_where=sa.text("removed_at IS NULL"),
        )

    op.drop_table("adapter")
    op.drop_table("tenant")
