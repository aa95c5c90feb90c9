"""Roll-ups of usage, price books, the ledger."""

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0003_metering"
down_revision = "0002_limits"
branch_labels = None
depends_on = None


# The list that holds until an operator publishes another: without one nothing can be rated.
FIRST_LIST = {
    "prices": [
        {"kind": "uncached_prompt", "usd_per_million": "0.10"},
        {"kind": "cached_prompt", "usd_per_million": "0.02"},
        {"kind": "completion", "usd_per_million": "0.40"},
        {"kind": "uncached_prompt", "usd_per_million": "0.12", "adapter": "*"},
        {"kind": "cached_prompt", "usd_per_million": "0.03", "adapter": "*"},
        {"kind": "completion", "usd_per_million": "0.50", "adapter": "*"},
    ],
    "tier_percent": {"interactive": 150, "standard": 100, "batch": 50},
    "hosting_usd_per_gib_hour": "0.002",
}


def upgrade() -> None:
    op.create_table(
        "latency_minute",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("bucket", sa.DateTime(timezone=True), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("tier", sa.String(), nullable=False),
        sa.Column("measure", sa.String(), nullable=False),
        sa.Column("bin", sa.Integer(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenant.id"], name=op.f("fk_latency_minute_tenant_id")
        ),
        sa.PrimaryKeyConstraint(
            "tenant_id", "bucket", "model", "tier", "measure", "bin", name=op.f("pk_latency_minute")
        ),
    )
    op.create_table(
        "ledger_entry",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("transaction_id", sa.String(), nullable=False),
        sa.Column("account", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("occurred_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("posted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("pico", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenant.id"], name=op.f("fk_ledger_entry_tenant_id")
        ),
        sa.PrimaryKeyConstraint("transaction_id", "account", name=op.f("pk_ledger_entry")),
    )
    with op.batch_alter_table("ledger_entry") as batch_op:
        batch_op.create_index(
            "ix_ledger_entry_tenant_id_account_occurred_at",
            ["tenant_id", "account", "occurred_at"],
            unique=False,
        )

    op.create_table(
        "price_book",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=True),
        sa.Column("effective_from", sa.DateTime(timezone=True), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_price_book_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_price_book")),
        sa.UniqueConstraint(
            "tenant_id", "effective_from", name=op.f("uq_price_book_tenant_id_effective_from")
        ),
    )
    with op.batch_alter_table("price_book") as batch_op:
        batch_op.create_index(
            "uq_price_book_effective_from",
            ["effective_from"],
            unique=True,
            sqlite_where=sa.text("tenant_id IS NULL"),
            postgresql_where=sa.text("tenant_id IS NULL"),
        )

    op.create_table(
        "usage_minute",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("bucket", sa.DateTime(timezone=True), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("base_model", sa.String(), nullable=False),
        sa.Column("adapter", sa.String(), nullable=False),
        sa.Column("tier", sa.String(), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("failed_requests", sa.BigInteger(), nullable=False),
        sa.Column("uncached_prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("unbilled_tokens", sa.BigInteger(), nullable=False),
        sa.Column("recomputed_tokens", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenant.id"], name=op.f("fk_usage_minute_tenant_id")
        ),
        sa.PrimaryKeyConstraint(
            "tenant_id",
            "bucket",
            "project_id",
            "key_id",
            "model",
            "base_model",
            "adapter",
            "tier",
            name=op.f("pk_usage_minute"),
        ),
    )
    op.create_table(
        "usage_quarter",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("bucket", sa.DateTime(timezone=True), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("base_model", sa.String(), nullable=False),
        sa.Column("adapter", sa.String(), nullable=False),
        sa.Column("tier", sa.String(), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("failed_requests", sa.BigInteger(), nullable=False),
        sa.Column("uncached_prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("unbilled_tokens", sa.BigInteger(), nullable=False),
        sa.Column("recomputed_tokens", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenant.id"], name=op.f("fk_usage_quarter_tenant_id")
        ),
        sa.PrimaryKeyConstraint(
            "tenant_id",
            "bucket",
            "project_id",
            "key_id",
            "model",
            "base_model",
            "adapter",
            "tier",
            name=op.f("pk_usage_quarter"),
        ),
    )
    with op.batch_alter_table("usage_event") as batch_op:
        batch_op.add_column(sa.Column("base_model", sa.String(), nullable=False, server_default=""))
        batch_op.add_column(
            sa.Column("delivered", sa.Boolean(), nullable=False, server_default=sa.true())
        )
        batch_op.create_index(
            "ix_usage_event_started_at", ["started_at", "request_id"], unique=False
        )
        batch_op.create_index(
            "ix_usage_event_tenant_id_started_at",
            ["tenant_id", "started_at", "request_id"],
            unique=False,
        )
    books = sa.table(
        "price_book",
        sa.column("id", sa.String()),
        sa.column("effective_from", sa.DateTime(timezone=True)),
        sa.column("content", sa.JSON()),
        sa.column("created_at", sa.DateTime(timezone=True)),
    )
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    row = {"id": "book_first", "effective_from": epoch, "content": FIRST_LIST, "created_at": epoch}
    op.bulk_insert(books, [row])


def downgrade() -> None:
    with op.batch_alter_table("usage_event") as batch_op:
        batch_op.drop_index("ix_usage_event_tenant_id_started_at")
        batch_op.drop_index("ix_usage_event_started_at")
        batch_op.drop_column("delivered")
        batch_op.drop_column("base_model")
    for table in ("usage_quarter", "usage_minute", "price_book", "ledger_entry", "latency_minute"):
        op.drop_table(table)
