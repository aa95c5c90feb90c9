"""Calendar periods in a tenant's zone, and the quarter hours that they are made of."""

from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from loraplex_platform.kit.errors import InvalidRequest

BUCKET = timedelta(minutes=15)  # every current UTC offset is a multiple of it
HOUR = timedelta(hours=1)
UTC_ZONE = ZoneInfo("UTC")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Span = Literal["day", "month"]


class Period(NamedTuple):
    """Half-open, in UTC."""

    start: datetime
    end: datetime

    def __contains__(self, moment: object) -> bool:
        return isinstance(moment, datetime) and self.start <= moment < self.end

    def cut(self, moments: Iterable[datetime]) -> Iterator["Period"]:
        """Its parts between those of the moments that lie within it."""
        inner = sorted({moment for moment in moments if self.start < moment < self.end})
        for start, end in pairwise((self.start, *inner, self.end)):
            yield Period(start, end)


def zone_of(name: str, param: str) -> ZoneInfo:
    """Raises InvalidRequest."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # «America» is a folder
        raise InvalidRequest(f"no such time zone: {name!r}", param=param) from error


def floor_to(moment: datetime, width: timedelta) -> datetime:
    """The last multiple of the width (counted from the Unix epoch) that is not later."""
    return moment - (moment - EPOCH) % width


def ceil_to(moment: datetime, width: timedelta) -> datetime:
    """The first multiple of the width that is not earlier."""
    return floor_to(moment + width - timedelta(microseconds=1), width)


def is_bucket_start(moment: datetime) -> bool:
    return floor_to(moment, BUCKET) == moment


def period_of(moment: datetime, span: Span, zone: ZoneInfo) -> Period:
    """The calendar day or month of the zone that contains the moment."""
    today = moment.astimezone(zone).date()
    if span == "day":
        return Period(_midnight(today, zone), _midnight(today + timedelta(days=1), zone))
    return month_of(today.year, today.month, zone)


def periods_from(moment: datetime, span: Span, zone: ZoneInfo) -> Iterator[Period]:
    """The calendar days or months of the zone from the one that contains the moment on, without end."""
    while True:
        period = period_of(moment, span, zone)
        yield period
        moment = period.end


def hours_from(moment: datetime, zone: ZoneInfo) -> Iterator[Period]:
    """Hours that begin as the zone's do at that moment, without end."""
    offset = moment.astimezone(zone).utcoffset() or timedelta()
    start = floor_to(moment + offset, HOUR) - offset
    while True:
        yield Period(start, start + HOUR)
        start += HOUR


def month_of(year: int, month: int, zone: ZoneInfo) -> Period:
    years, months = divmod(year * 12 + month, 12)  # of the month that follows
    return Period(
        _midnight(date(year, month, 1), zone), _midnight(date(years, months + 1, 1), zone)
    )


def months_between(start: datetime, end: datetime, zone: ZoneInfo) -> Iterator[Period]:
    """The calendar months that touch [start, end), oldest first."""
    while start < end:
        period = period_of(start, "month", zone)
        yield period
        start = period.end


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    """The day's first moment; where the clocks skip midnight, the moment they do."""
    return datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)
