"""What a tenant owes for a period, by item: usage at its prices, and hosting."""

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.catalogue.models import Adapter
from loraplex_platform.catalogue.repository import AdapterRepository
from loraplex_platform.usage.credits import Spent
from loraplex_platform.usage.hosting import HostingLine, hosting_lines
from loraplex_platform.usage.periods import BUCKET, Period, ceil_to
from loraplex_platform.usage.price_repository import PriceRepository
from loraplex_platform.usage.prices import Tariffs
from loraplex_platform.usage.rating import cost_pico, rate
from loraplex_platform.usage.repository import UsageRepository

UNITS = {"hosting": "GiB-hours"}  # of everything else: tokens
BYTE_SECONDS = 10**6  # byte-microseconds


class Item(NamedTuple):
    """What stands on a line of its own."""

    kind: str  # a TokenKind, or hosting
    model: str  # as clients named it; of hosting: the adapter's name
    adapter: str  # version; of hosting: the adapter's id
    tier: str
    unit_pico: int
    list_unit_pico: int

    @property
    def text(self) -> str:
        return json.dumps(self)

    @classmethod
    def parse(cls, text: str) -> "Item":
        return cls(*json.loads(text))


class Amount(NamedTuple):
    """Tokens, or byte-seconds; and what they cost."""

    quantity: int = 0
    pico: int = 0
    list_pico: int = 0

    def plus(self, other: "Amount") -> "Amount":
        return Amount(*(a + b for a, b in zip(self, other, strict=True)))


class Charges:
    """Reads roll-ups, prices and the catalogue's history of one tenant; the last two once."""

    def __init__(self, session: AsyncSession, tenant_id: str, now: datetime) -> None:
        self._session = session
        self._tenant_id = tenant_id
        self._now = now
        self._tariffs: Tariffs | None = None
        self._adapters: Sequence[Adapter] | None = None

    async def tariffs(self) -> Tariffs:
        if self._tariffs is None:
            self._tariffs = await PriceRepository(self._session).tariffs(self._tenant_id)
        return self._tariffs

    async def of(self, period: Period) -> dict[Item, Amount]:
        """Everything of a period that starts and ends with quarter hours."""
        found: dict[Item, Amount] = {}
        usage = UsageRepository(self._session)
        for part, tariff in (await self.tariffs()).segments(period):
            for model, sku, tokens in await usage.totals(self._tenant_id, part):
                for line in rate(sku, tokens, tariff):
                    item = Item(
                        line.kind, model, sku.adapter, sku.tier, line.unit_pico, line.list_unit_pico
                    )
                    _add(found, item, Amount(line.quantity, line.pico, line.list_pico))
        for stored in await self.hosting(period):
            _add(found, *hosted(stored))
        return found

    async def hosting(self, period: Period) -> list[HostingLine]:
        """Up to now: nobody owes what is still to come."""
        return [line for _, line in await self.hosting_by([period])]

    async def hosting_by(self, periods: Sequence[Period]) -> list[tuple[Period, HostingLine]]:
        """The same for several periods."""
        if self._adapters is None:
            catalogue = AdapterRepository(self._session)
            self._adapters = await catalogue.ever_of_tenant(self._tenant_id)
        if not self._adapters:
            return []
        tariffs = await self.tariffs()
        return [
            (period, line)
            for period in periods
            for adapter in self._adapters
            for line in hosting_lines(
                adapter, Period(period.start, min(period.end, self._now)), tariffs
            )
        ]

    async def usage_pico(self, period: Period) -> int:
        """Tokens at their prices, without hosting."""
        usage, pico = UsageRepository(self._session), 0
        for part, tariff in (await self.tariffs()).segments(period):
            totals = await usage.totals(self._tenant_id, part)
            pico += sum(cost_pico(sku, tokens, tariff) for _, sku, tokens in totals)
        return pico

    async def over_time(self, period: Period, moments: Iterable[datetime] = ()) -> list[Spent]:
        """Usage between these moments; hosting is owed at the end of its time.

        A quarter hour belongs to where it starts.
        """
        cuts = period.cut(ceil_to(moment, BUCKET) for moment in moments)
        spent = [Spent(part.start, await self.usage_pico(part)) for part in cuts]
        return spent + [Spent(line.period.end, line.pico) for line in await self.hosting(period)]


def hosted(line: HostingLine) -> tuple[Item, Amount]:
    item = Item("hosting", line.adapter, line.adapter_id, "", line.unit_pico, line.list_unit_pico)
    return item, Amount(line.byte_microseconds // BYTE_SECONDS, line.pico, line.list_pico)


def difference(
    charged: dict[Item, Amount], invoiced: dict[Item, Amount]
) -> Iterator[tuple[Item, Amount]]:
    """What was charged and not invoiced, or invoiced and no longer charged; in the items' order."""
    for item in sorted(charged.keys() | invoiced.keys()):
        a, b = charged.get(item, Amount()), invoiced.get(item, Amount())
        rest = Amount(a.quantity - b.quantity, a.pico - b.pico, a.list_pico - b.list_pico)
        if rest.quantity or rest.pico:
            yield item, rest


def _add(found: dict[Item, Amount], item: Item, amount: Amount) -> None:
    found[item] = found.get(item, Amount()).plus(amount)
