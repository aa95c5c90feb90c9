"""Calendar periods in every zone: they tile time, and quarter hours tile them."""

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.usage.periods import (
    hours_from,
    is_bucket_start,
    month_of,
    months_between,
    period_of,
    zone_of,
)

ZONES = (
    "UTC",
    "Pacific/Pago_Pago",  # -11
    "America/St_Johns",  # -3:30, DST
    "America/Havana",  # clocks change at midnight
    "Europe/Berlin",
    "Africa/Cairo",
    "Asia/Kolkata",  # +5:30
    "Asia/Kathmandu",  # +5:45
    "Australia/Lord_Howe",  # DST of half an hour
    "Pacific/Chatham",  # +12:45, DST
    "Pacific/Kiritimati",  # +14
)
zones = st.sampled_from(ZONES).map(ZoneInfo)
moments = st.datetimes(datetime(2024, 1, 1), datetime(2029, 1, 1), timezones=st.just(UTC))


@given(moments, st.sampled_from(["day", "month"]), zones)
def test_periods_tile_time_in_quarter_hours(moment: datetime, span: str, zone: ZoneInfo) -> None:
    period = period_of(moment, span, zone)
    assert moment in period
    assert period_of(period.end, span, zone).start == period.end
    assert period_of(period.start - timedelta(microseconds=1), span, zone).end == period.start
    assert is_bucket_start(period.start)
    assert is_bucket_start(period.end)


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", datetime(2026, 3, 29, 12), 23),
        ("Europe/Berlin", datetime(2026, 10, 25, 12), 25),
        ("Australia/Lord_Howe", datetime(2026, 10, 4, 12), 23.5),
        ("America/Havana", datetime(2026, 3, 8, 12), 23),
        ("Asia/Kathmandu", datetime(2024, 2, 29, 12), 24),
    ],
)
def test_days_have_the_hours_that_the_clocks_say(zone: str, day: datetime, hours: float) -> None:
    there = ZoneInfo(zone)
    period = period_of(day.replace(tzinfo=there), "day", there)
    assert (period.end - period.start) == timedelta(hours=hours)


@given(moments, zones)
def test_hours_begin_as_the_zones_do_and_tile_time(moment: datetime, zone: ZoneInfo) -> None:
    hours = list(islice(hours_from(moment, zone), 30))
    assert moment in hours[0]
    assert hours[0].start.astimezone(zone).minute == 0
    assert all(a.end == b.start for a, b in pairwise(hours))
    assert all(is_bucket_start(hour.start) for hour in hours)


@pytest.mark.parametrize("name", ["Mars/Base", "America", "../etc/passwd", "", "\0"])
def test_what_is_no_zone_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="no such time zone"):
        zone_of(name, "zone")


def test_leap_day_belongs_to_february() -> None:
    period = month_of(2024, 2, ZoneInfo("UTC"))
    assert period.end - period.start == timedelta(days=29)
    assert month_of(2026, 12, ZoneInfo("UTC")).end == datetime(2027, 1, 1, tzinfo=UTC)


@given(moments, moments, zones)
def test_months_between_meet_at_their_ends(a: datetime, b: datetime, zone: ZoneInfo) -> None:
    start, end = sorted((a, b))
    months = list(months_between(start, end, zone))
    assert [m.end for m in months[:-1]] == [m.start for m in months[1:]]
    if start < end:
        assert months[0].start <= start
        assert months[-1].end >= end
