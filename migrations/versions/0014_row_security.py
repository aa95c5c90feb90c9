"""On Postgres a session sees the rows of the tenant it names, and none when it names nobody."""

from alembic import op

revision = "0014_row_security"
down_revision = "0013_closing"
branch_labels = None
depends_on = None

OWNED = (
    "adapter", "adapter_name", "admin_key", "api_key", "audit_event", "batch", "batch_line",
    "billing_profile", "budget", "budget_alert", "credit_grant", "credit_use", "file", "invoice",
    "invoice_line", "key_use", "latency_minute", "ledger_entry", "limit_override", "limit_rule",
    "login_session", "one_time_link", "person", "prefix", "price_book", "project",
    "rejection_count", "rejection_samples", "service_account", "stored_prompt", "usage_event", "usage_minute",
    "usage_quarter", "webhook", "webhook_delivery",
)  # fmt: skip
COLUMNS = {"tenant": "id"} | dict.fromkeys(OWNED, "tenant_id")
# The platform's own work names '*'. A row of no tenant is for that alone.
POLICY = """
CREATE POLICY own_rows ON {table}
USING ((SELECT current_setting('loraplex.tenant_id', true)) IN ({column}, '*'))
"""
# The price list is one row of no tenant that every tenant's bill is made by.
PRICE_LIST = """
CREATE POLICY list_for_all ON price_book FOR SELECT
USING (tenant_id IS NULL AND (SELECT current_setting('loraplex.tenant_id', true)) <> '')
"""


def upgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        return
    for table, column in COLUMNS.items():
        op.execute(POLICY.format(table=table, column=column))
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")  # the owner is us
    op.execute(PRICE_LIST)


def downgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        return
    op.execute("DROP POLICY list_for_all ON price_book")
    for table in COLUMNS:
        op.execute(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY")
        op.execute(f"DROP POLICY own_rows ON {table}")
