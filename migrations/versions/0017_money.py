"""Spend holds, prepaid tenants, and what engines counted."""

import sqlalchemy as sa
from alembic import op

revision = "0017_money"
down_revision = "0016_console"
branch_labels = None
depends_on = None

ZERO = sa.text("0")
OWNED = ("spend_hold", "lost_work", "engine_count")
# As for every table of tenants: see 0014_row_security.
POLICY = """
CREATE POLICY own_rows ON {table}
USING ((SELECT current_setting('loraplex.tenant_id', true)) IN (tenant_id, '*'))
"""


def upgrade() -> None:
    op.create_table(
        "spend_hold",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("claim", sa.JSON(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("released_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("used_tokens", sa.BigInteger(), nullable=True),
        sa.Column("used_pico", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_spend_hold_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_spend_hold")),
    )
    op.create_table(
        "engine_count",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("engine_id", sa.String(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("open_tokens", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("engine_id", "tenant_id", name=op.f("pk_engine_count")),
    )
    op.create_table(
        "lost_work",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fk_lost_work_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lost_work")),
    )
    with op.batch_alter_table("spend_hold") as batch_op:
        batch_op.create_index("ix_spend_hold_tenant_id", ["tenant_id"])
        batch_op.create_index("ix_spend_hold_expires_at", ["expires_at"])
    with op.batch_alter_table("lost_work") as batch_op:
        batch_op.create_index("ix_lost_work_at", ["at"])
    with op.batch_alter_table("usage_event") as batch_op:
        batch_op.add_column(_counter("discarded_tokens"))
    op.execute("UPDATE usage_event SET outcome = 'disconnect' WHERE outcome = 'abort'")
    for table in ("usage_quarter", "usage_minute"):
        with op.batch_alter_table(table) as batch_op:
            batch_op.add_column(_counter("generated_tokens"))
    with op.batch_alter_table("billing_profile") as batch_op:
        batch_op.add_column(
            sa.Column("is_prepaid", sa.Boolean(), nullable=False, server_default=sa.false())
        )
    if op.get_bind().dialect.name == "postgresql":
        for table in OWNED:
            op.execute(POLICY.format(table=table))
            op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
            op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")


def _counter(name: str) -> "sa.Column[int]":
    return sa.Column(name, sa.BigInteger(), nullable=False, server_default=ZERO)


def downgrade() -> None:
    with op.batch_alter_table("billing_profile") as batch_op:
        batch_op.drop_column("is_prepaid")
    for table in ("usage_minute", "usage_quarter"):
        with op.batch_alter_table(table) as batch_op:
            batch_op.drop_column("generated_tokens")
    op.execute(
        "UPDATE usage_event SET outcome = 'abort' WHERE outcome IN ('disconnect', 'cancelled')"
    )
    with op.batch_alter_table("usage_event") as batch_op:
        batch_op.drop_column("discarded_tokens")
    for table in ("lost_work", "engine_count", "spend_hold"):
        op.drop_table(table)
