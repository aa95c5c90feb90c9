"""Statements on the ledger: entries are added and read, nothing else."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy import func
from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.db.scope import across_tenants
from loraplex_platform.db.upsert import insert_missing
from loraplex_platform.usage.billing_models import InvoiceRow, LedgerEntry
from loraplex_platform.usage.exact import exact_sum, joined
from loraplex_platform.usage.ledger import Account, Transaction, TransactionKind
from loraplex_platform.usage.periods import Period


class LedgerRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def post(self, transactions: Iterable[Transaction], posted_at: datetime) -> None:
        """A transaction that is there already stays as it is."""
        rows = [row for t in transactions for row in t.rows(posted_at)]
        if rows:
            await self._session.execute(insert_missing(self._session, LedgerEntry), rows)

    async def balance(
        self,
        tenant_id: str,
        account: Account,
        *,
        kind: TransactionKind | None = None,
        period: Period | None = None,
    ) -> int:
        """Pico-USD; debits are positive."""
        statement = across_tenants(LedgerEntry).where(
            LedgerEntry.tenant_id == tenant_id, LedgerEntry.account == account
        )
        if kind is not None:
            statement = statement.where(LedgerEntry.kind == kind)
        if period is not None:
            start, end = period
            statement = statement.where(
                LedgerEntry.occurred_at >= start, LedgerEntry.occurred_at < end
            )
        sums = statement.with_only_columns(*exact_sum(LedgerEntry.pico))
        return joined(*(await self._session.execute(sums)).one())

    async def of_invoice(self, row: InvoiceRow) -> Sequence[LedgerEntry]:
        """What was posted when it became final."""
        kinds = ("hosting", "fee", "rounding", "tax", "burn")
        ends_with = LedgerEntry.transaction_id.like(f"%:{row.id}%")
        statement = across_tenants(LedgerEntry).where(
            LedgerEntry.tenant_id == row.tenant_id, LedgerEntry.kind.in_(kinds), ends_with
        )
        return (await self._session.scalars(statement)).all()

    async def unbalanced(self) -> list[str]:
        """Transactions that do not add up to zero: there are none."""
        statement = (
            across_tenants(LedgerEntry)
            .with_only_columns(LedgerEntry.transaction_id)
            .group_by(LedgerEntry.transaction_id)
        )
        return list(await self._session.scalars(statement.having(func.sum(LedgerEntry.pico) != 0)))
