"""Tenants may have their prompts kept; when a tenant was closed."""

import sqlalchemy as sa
from alembic import op

revision = "0013_closing"
down_revision = "0012_batch_orders"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "stored_prompt",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("request_id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("asked", sa.JSON(), nullable=False),
        sa.Column("answers", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenant.id"], name=op.f("fk_stored_prompt_tenant_id")
        ),
        sa.PrimaryKeyConstraint("request_id", name=op.f("pk_stored_prompt")),
    )
    with op.batch_alter_table("stored_prompt") as batch_op:
        batch_op.create_index(
            "ix_stored_prompt_tenant_id_project_id", ["tenant_id", "project_id", "request_id"]
        )
        batch_op.create_index("ix_stored_prompt_tenant_id_created_at", ["tenant_id", "created_at"])
    with op.batch_alter_table("tenant") as batch_op:
        batch_op.add_column(
            sa.Column("stores_prompts", sa.Boolean(), nullable=False, server_default=sa.false())
        )
        batch_op.add_column(sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True))
    with op.batch_alter_table("tenant") as batch_op:
        batch_op.alter_column("stores_prompts", server_default=None)


def downgrade() -> None:
    with op.batch_alter_table("tenant") as batch_op:
        batch_op.drop_column("closed_at")
        batch_op.drop_column("stores_prompts")
    op.drop_table("stored_prompt")
