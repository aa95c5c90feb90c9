"""Limits per tenant, project and key, and what they turned away."""

import sqlalchemy as sa
from alembic import op

revision = "0002_limits"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "limit_rule",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("level", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("dimension", sa.String(), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.Column("strict", sa.Boolean(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_limit_rule_tenant_id")),
        sa.PrimaryKeyConstraint("level", "subject", "dimension", name=op.f("pk_limit_rule")),
    )
    op.create_index("ix_limit_rule_tenant_id", "limit_rule", ["tenant_id"])
    op.create_table(
        "rejection_count",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("minute", sa.DateTime(timezone=True), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("limit", sa.String(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenant.id"], name=op.f("fk_rejection_count_tenant_id")
        ),
        sa.PrimaryKeyConstraint(
            "minute", "key_id", "reason", "limit", name=op.f("pk_rejection_count")
        ),
    )
    op.create_index(
        "ix_rejection_count_tenant_id_minute", "rejection_count", ["tenant_id", "minute"]
    )
    op.create_table(
        "rejection_samples",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("samples", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenant.id"], name=op.f("fk_rejection_samples_tenant_id")
        ),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_rejection_samples")),
    )
    op.create_index("ix_rejection_samples_tenant_id", "rejection_samples", ["tenant_id"])


def downgrade() -> None:
    op.drop_table("rejection_samples")
    op.drop_table("rejection_count")
    op.drop_table("limit_rule")
