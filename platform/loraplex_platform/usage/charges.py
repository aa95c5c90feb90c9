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
from loraplex_platform.usage.prices import Tariff, Tariffs
from loraplex_platform.usage.rating import cost_pico, rate
from loraplex_platform.usage.repository import Total, UsageRepository

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

    async def of_each(self, periods: Sequence[Period]) -> list[dict[Item, Amount]]:
        """Everything of periods that start and end with quarter hours and do not overlap."""
        found: list[dict[Item, Amount]] = []
        for used in await self._used(periods):
            items: dict[Item, Amount] = {}
            for (model, sku, tokens), tariff in used:
                for line in rate(sku, tokens, tariff):
                    item = Item(
                        line.kind, model, sku.adapter, sku.tier, line.unit_pico, line.list_unit_pico
                    )
                    _add(items, item, Amount(line.quantity, line.pico, line.list_pico))
            found.append(items)
        for items, period in zip(found, periods, strict=True):
            for stored in await self.hosting(period):
                _add(items, *hosted(stored))
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
        return (await self.usage_pico_each([period]))[0]

    async def usage_pico_each(self, periods: Sequence[Period]) -> list[int]:
        """The same for several periods, none of which overlaps another."""
        return [
            sum(cost_pico(total.sku, total.tokens, tariff) for total, tariff in used)
            for used in await self._used(periods)
        ]

    async def over_time(self, period: Period, moments: Iterable[datetime] = ()) -> list[Spent]:
        """Usage between these moments; hosting is owed at the end of its time.

        A quarter hour belongs to where it starts.
        """
        cuts = list(period.cut(ceil_to(moment, BUCKET) for moment in moments))
        owed = await self.usage_pico_each(cuts)
        spent = [Spent(part.start, pico) for part, pico in zip(cuts, owed, strict=True)]
        return spent + [Spent(line.period.end, line.pico) for line in await self.hosting(period)]

    async def _used(self, periods: Sequence[Period]) -> list[list[tuple[Total, Tariff]]]:
        """What was used in each period, with the prices of its time; one statement for all."""
        tariffs = await self.tariffs()
        parts = [(i, *part) for i, each in enumerate(periods) for part in tariffs.segments(each)]
        totals = await UsageRepository(self._session).totals(
            self._tenant_id, [part for _, part, _ in parts]
        )
        used: list[list[tuple[Total, Tariff]]] = [[] for _ in periods]
        for (i, _, tariff), of_part in zip(parts, totals, strict=True):
            used[i] += [(total, tariff) for total in of_part]
        return used


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
