"""Budgets, credits, invoices."""

import sqlalchemy as sa
from alembic import op

revision = "0004_billing"
down_revision = "0003_metering"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "billing_profile",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("zone", sa.String(), nullable=False),
        sa.Column("legal_name", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("tax_basis_points", sa.Integer(), nullable=False),
        sa.Column("minimum_fee_cents", sa.BigInteger(), nullable=False),
        sa.Column("payment_days", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenant.id"], name=op.f("fk_billing_profile_tenant_id")
        ),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_billing_profile")),
    )
    op.create_table(
        "budget",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("level", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("span", sa.String(), nullable=False),
        sa.Column("pico", sa.BigInteger(), nullable=False),
        sa.Column("is_hard", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_budget_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_budget")),
        sa.UniqueConstraint("level", "subject", "span", name=op.f("uq_budget_level_subject_span")),
    )
    with op.batch_alter_table("budget") as batch_op:
        batch_op.create_index("ix_budget_tenant_id", ["tenant_id"], unique=False)

    op.create_table(
        "credit_grant",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("pico", sa.BigInteger(), nullable=False),
        sa.Column("funding", sa.String(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("effective_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenant.id"], name=op.f("fk_credit_grant_tenant_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_credit_grant")),
        sa.UniqueConstraint("tenant_id", "key", name=op.f("uq_credit_grant_tenant_id_key")),
    )
    op.create_table(
        "invoice",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("credits_id", sa.String(), nullable=True),
        sa.Column("period_start", sa.DateTime(timezone=True), nullable=False),
        sa.Column("period_end", sa.DateTime(timezone=True), nullable=False),
        sa.Column("total_cents", sa.BigInteger(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("finalized_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("paid_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("voided_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["credits_id"], ["invoice.id"], name=op.f("fk_invoice_credits_id")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_invoice_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_invoice")),
        sa.UniqueConstraint("number", name=op.f("uq_invoice_number")),
    )
    with op.batch_alter_table("invoice") as batch_op:
        batch_op.create_index(
            "uq_invoice_tenant_id_period_start",
            ["tenant_id", "period_start"],
            unique=True,
            sqlite_where=sa.text("voided_at IS NULL AND credits_id IS NULL"),
            postgresql_where=sa.text("voided_at IS NULL AND credits_id IS NULL"),
        )

    op.create_table(
        "budget_alert",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("budget_id", sa.String(), nullable=False),
        sa.Column("window_start", sa.DateTime(timezone=True), nullable=False),
        sa.Column("percent", sa.Integer(), nullable=False),
        sa.Column("spent_pico", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["budget_id"], ["budget.id"], name=op.f("fk_budget_alert_budget_id")
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenant.id"], name=op.f("fk_budget_alert_tenant_id")
        ),
        sa.PrimaryKeyConstraint(
            "budget_id", "window_start", "percent", name=op.f("pk_budget_alert")
        ),
    )
    with op.batch_alter_table("budget_alert") as batch_op:
        batch_op.create_index("ix_budget_alert_tenant_id", ["tenant_id"], unique=False)

    op.create_table(
        "credit_use",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("invoice_id", sa.String(), nullable=False),
        sa.Column("grant_id", sa.String(), nullable=False),
        sa.Column("pico", sa.BigInteger(), nullable=False),
        sa.Column("is_void", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["grant_id"], ["credit_grant.id"], name=op.f("fk_credit_use_grant_id")
        ),
        sa.ForeignKeyConstraint(
            ["invoice_id"], ["invoice.id"], name=op.f("fk_credit_use_invoice_id")
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_credit_use_tenant_id")),
        sa.PrimaryKeyConstraint("invoice_id", "grant_id", name=op.f("pk_credit_use")),
    )
    with op.batch_alter_table("credit_use") as batch_op:
        batch_op.create_index("ix_credit_use_tenant_id", ["tenant_id"], unique=False)

    op.create_table(
        "invoice_line",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("invoice_id", sa.String(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("month", sa.DateTime(timezone=True), nullable=False),
        sa.Column("item", sa.String(), nullable=False),
        sa.Column("quantity", sa.BigInteger(), nullable=False),
        sa.Column("pico", sa.BigInteger(), nullable=False),
        sa.Column("list_pico", sa.BigInteger(), nullable=False),
        sa.Column("is_void", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["invoice_id"], ["invoice.id"], name=op.f("fk_invoice_line_invoice_id")
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenant.id"], name=op.f("fk_invoice_line_tenant_id")
        ),
        sa.PrimaryKeyConstraint("invoice_id", "position", name=op.f("pk_invoice_line")),
    )
    with op.batch_alter_table("invoice_line") as batch_op:
        batch_op.create_index("ix_invoice_line_tenant_id", ["tenant_id", "month"], unique=False)


def downgrade() -> None:
    for table in (
        "invoice_line",
        "credit_use",
        "budget_alert",
        "invoice",
        "credit_grant",
        "budget",
        "billing_profile",
    ):
        op.drop_table(table)
