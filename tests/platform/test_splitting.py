"""Whatever the zone and wherever a period is cut: its parts add up to it, to the pico-dollar."""

import asyncio
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from zoneinfo import ZoneInfo

from hypothesis import Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.platform_stand import home_like
from tests.usage_stand import add_adapter_of, add_book, book, facts, post

from loraplex_platform.audit.trail import changing
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import ManualClock
from loraplex_platform.kit.principal import COMMAND_LINE
from loraplex_platform.models import Tenant
from loraplex_platform.usage.charges import Charges
from loraplex_platform.usage.facts import UsageFacts
from loraplex_platform.usage.periods import BUCKET, Period, ceil_to, period_of
from loraplex_platform.usage.price_repository import PriceRepository
from loraplex_platform.usage.rating import cost_pico, sku_of, tokens_of

ZONES = (
    "Pacific/Pago_Pago",  # -11
    "America/St_Johns",  # -3:30, DST
    "UTC",
    "Asia/Kathmandu",  # +5:45
    "Australia/Lord_Howe",  # DST of half an hour
    "Pacific/Chatham",  # +12:45, DST
    "Pacific/Kiritimati",  # +14
)
# A leap day, two months' ends, and the clocks' changes of both hemispheres.
START, END = datetime(2028, 2, 25, tzinfo=UTC), datetime(2028, 4, 8, tzinfo=UTC)
SECONDS = int((END - START).total_seconds())
moments = st.integers(0, SECONDS - 1).map(lambda s: START + timedelta(seconds=s))


@st.composite
def events(draw: st.DrawFn) -> UsageFacts:
    return facts(
        "a",
        started_at=draw(moments),
        tier=draw(st.sampled_from(["interactive", "standard", "batch"])),
        adapter_version=draw(st.sampled_from([None, "version-1"])),
        completion_tokens=draw(st.integers(0, 999)),
    )


def days_of(period: Period, zone: ZoneInfo) -> list[Period]:
    """The zone's calendar days that touch the period, cut to it."""
    days, at = [], period.start
    while at < period.end:
        day = period_of(at, "day", zone)
        days.append(Period(at, min(day.end, period.end)))
        at = day.end
    return days


@hypothesis_settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    st.lists(events(), min_size=1, max_size=20),
    st.sampled_from(ZONES).map(ZoneInfo),
    st.lists(moments, max_size=5),
)
def test_days_and_any_other_parts_add_up(
    migrated: Path, made: list[UsageFacts], zone: ZoneInfo, cuts: list[datetime]
) -> None:
    async def story(database: Database) -> None:
        async with changing(database, COMMAND_LINE, ManualClock()) as session:
            session.add(Tenant(id="a", name="a", state="active", created_at=START))
        dear = {"prices": [{"kind": "completion", "usd_per_million": "0.7"}]}
        change = datetime(2028, 3, 3, 7, 45, tzinfo=UTC)
        await add_book(database, book(dear, id="own", at=change, tenant_id="a"))
        await add_adapter_of(database, "a", num_bytes=7 * 10**8, created_at=START)
        await post(database, made)
        whole = Period(START, END)
        async with database.reading() as session:
            charges = Charges(session, "a", END)
            tariffs = await PriceRepository(session).tariffs("a")
            used = await charges.usage_pico(whole)
            hosted = sum(line.pico for line in await charges.hosting(whole))
            for parts in (days_of(whole, zone), list(whole.cut(ceil_to(c, BUCKET) for c in cuts))):
                assert sum([await charges.usage_pico(part) for part in parts]) == used
            exact = list(whole.cut(cuts))  # hosting may be cut at any instant
            assert sum(line.pico for _, line in await charges.hosting_by(exact)) == hosted
            by_day: dict[date, int] = {}
            for event in made:
                day = event.started_at.astimezone(zone).date()
                pico = cost_pico(sku_of(event), tokens_of(event), tariffs.at(event.started_at))
                by_day[day] = by_day.get(day, 0) + pico
            for part in days_of(whole, zone):
                day = part.start.astimezone(zone).date()
                assert await charges.usage_pico(part) == by_day.get(day, 0)
        assert used == sum(by_day.values())

    async def told() -> None:
        with TemporaryDirectory() as folder:
            database = Database(home_like(migrated.parent, Path(folder)).database)
            try:
                await story(database)
            finally:
                await database.close()

    asyncio.run(told())
