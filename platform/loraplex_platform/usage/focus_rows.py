"""Reads a tenant's month as FOCUS rows; what is read at once is one day."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.tenants.repository import TenantRepository
from loraplex_platform.usage.billing_models import InvoiceRow
from loraplex_platform.usage.billing_repository import BillingRepository
from loraplex_platform.usage.charges import Amount, Charges, Item, difference, hosted
from loraplex_platform.usage.focus import (
    Account,
    Place,
    Row,
    correction_row,
    extra_rows,
    note_rows,
    usage_row,
)
from loraplex_platform.usage.hosting import HostingLine
from loraplex_platform.usage.models import UsageQuarter
from loraplex_platform.usage.money import pico_of
from loraplex_platform.usage.periods import Period, floor_to
from loraplex_platform.usage.prices import Tariffs
from loraplex_platform.usage.rating import rate, sums_of_quarter
from loraplex_platform.usage.repository import UsageRepository

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
Found = dict[Item, Amount]


class FocusRows:
    """Hours from roll-ups, and the rest from the invoice where the month has one."""

    def __init__(self, session: AsyncSession, account: Account, region: str, now: datetime) -> None:
        self._session = session
        self._account = account
        self._region = region
        self._charges = Charges(session, account.tenant_id, now)
        self._found: Found = {}  # what the rows of this month's own usage come to

    async def pages(self, invoice: InvoiceRow | None) -> AsyncIterator[list[Row]]:
        projects = await TenantRepository(self._session).project_names(self._account.tenant_id)
        tariffs, billing = await self._charges.tariffs(), self._account.billing
        day = billing.start
        while day < billing.end:
            period = Period(day, min(day + DAY, billing.end))
            usage = UsageRepository(self._session)
            quarters = await usage.quarters(self._account.tenant_id, period)
            yield self._hours(quarters, tariffs, projects)
            self._session.expunge_all()
            day += DAY
        yield [self._hosting_row(*hosted(line), line.period) for line in await self._hosting()]
        yield await self._note_rows()
        if invoice is not None:
            yield await self._invoice_rows(invoice)

    def _hours(
        self, quarters: Sequence[UsageQuarter], tariffs: Tariffs, projects: dict[str, str]
    ) -> list[Row]:
        hours: dict[tuple[datetime, str, str, Item], Amount] = {}
        for quarter in quarters:
            sku, tokens = sums_of_quarter(quarter)
            for line in rate(sku, tokens, tariffs.at(quarter.bucket)):
                item = Item(
                    line.kind,
                    quarter.model,
                    sku.adapter,
                    sku.tier,
                    line.unit_pico,
                    line.list_unit_pico,
                )
                hour = floor_to(quarter.bucket, HOUR)
                key = (hour, quarter.project_id, quarter.key_id, item)
                amount = Amount(line.quantity, line.pico, line.list_pico)
                hours[key] = hours.get(key, Amount()).plus(amount)
                self._count(item, amount)
        billing = self._account.billing
        return [
            usage_row(
                self._account,
                item,
                amount,
                Period(max(hour, billing.start), min(hour + HOUR, billing.end)),
                Place(project, projects.get(project, project), key, self._region),
            )
            for (hour, project, key, item), amount in sorted(hours.items())
        ]

    async def _hosting(self) -> list[HostingLine]:
        return await self._charges.hosting(self._account.billing)

    def _hosting_row(self, item: Item, amount: Amount, period: Period) -> Row:
        self._count(item, amount)
        return usage_row(self._account, item, amount, period)

    async def _note_rows(self) -> list[Row]:
        """Of the credit notes that were written within the month, on whatever earlier invoice."""
        account, billing = self._account, BillingRepository(self._session)
        return [
            row
            for note in await billing.notes_in(account.tenant_id, account.billing)
            for tax in [pico_of(note.document["tax"]["amount"])]
            for row in note_rows(
                account,
                note.document["number"],
                Period(note.period_start, note.period_end),
                (("Credit", pico_of(note.document["total"]) - tax), ("Tax", tax)),
            )
        ]

    async def _invoice_rows(self, invoice: InvoiceRow) -> list[Row]:
        """Corrections, and what the rows above miss or have too much of the invoice's total."""
        account, rows = self._account, list[Row]()
        own: Found = {}
        for line in await BillingRepository(self._session).lines(invoice.id):
            item, amount = Item.parse(line.item), Amount(line.quantity, line.pico, line.list_pico)
            if line.month == account.billing.start:
                own[item] = amount
                continue
            month = Period(line.month, account.billing.start)
            rows.append(correction_row(account, item, amount, month))
        late = sum(amount.pico for _, amount in difference(own, self._found))
        document = invoice.document
        rounding = pico_of(document["subtotal"]) - sum(
            pico_of(line["exact_amount"]) for line in document["lines"]
        )
        extras = [
            ("Adjustment", "Usage that a later invoice charges", late),
            ("Adjustment", "Minimum fee", pico_of(document["minimum_fee"])),
            *(
                ("Credit", f"Credit {credit['grant']}", pico_of(credit["amount"]))
                for credit in document["credits"]
            ),
            ("Tax", f"Tax {document['tax']['percent']} %", pico_of(document["tax"]["amount"])),
            ("Adjustment", "Rounding to cents", rounding),
        ]
        return rows + list(extra_rows(account, extras))

    def _count(self, item: Item, amount: Amount) -> None:
        self._found[item] = self._found.get(item, Amount()).plus(amount)
