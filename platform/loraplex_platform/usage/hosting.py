"""Adapter hosting: stored bytes × time, from the catalogue's history alone.

What an adapter costs up to a moment is one rounded-down number; a period costs the difference of two
such numbers. So the parts of any split add up to the whole, to the pico-dollar.
"""

from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from loraplex_platform.usage.periods import Period
from loraplex_platform.usage.prices import Tariff, Tariffs

MICROSECOND = timedelta(microseconds=1)
GIB_HOUR = 2**30 * (timedelta(hours=1) // MICROSECOND)  # byte-microseconds


class Hosted(Protocol):
    """What hosting reads of an adapter in the catalogue."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def created_at(self) -> datetime: ...
    @property
    def removed_at(self) -> datetime | None: ...


class HostingLine(NamedTuple):
    """An adapter's storage over a period in which one price held."""

    adapter_id: str
    adapter: str
    period: Period
    byte_microseconds: int
    unit_pico: int  # a GiB-hour
    list_unit_pico: int
    pico: int
    list_pico: int


def hosting_lines(adapter: Hosted, period: Period, tariffs: Tariffs) -> list[HostingLine]:
    start = max(period.start, adapter.created_at)
    end = min(period.end, adapter.removed_at or period.end)
    if start >= end:
        return []
    return [_line(adapter, part, tariff) for part, tariff in tariffs.segments(Period(start, end))]


def _line(adapter: Hosted, period: Period, tariff: Tariff) -> HostingLine:

    def cost(unit_pico: int) -> int:
        """The difference of the adapter's running cost at the period's ends."""
        upto = [_stored(adapter, moment) * unit_pico // GIB_HOUR for moment in period]
        return upto[1] - upto[0]

    return HostingLine(
        adapter.id,
        adapter.name,
        period,
        _stored(adapter, period.end) - _stored(adapter, period.start),
        tariff.hosting_pico,
        tariff.list_hosting_pico,
        cost(tariff.hosting_pico),
        cost(tariff.list_hosting_pico),
    )


def _stored(adapter: Hosted, moment: datetime) -> int:
    """Byte-microseconds since it was added."""
    return adapter.num_bytes * ((moment - adapter.created_at) // MICROSECOND)
