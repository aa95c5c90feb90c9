"""Budgets: soft ones tell, hard ones refuse, windows are derived and never reset."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from fastapi import FastAPI
from openai import RateLimitError
from tests.platform_stand import BASE, Served, listening
from tests.usage_stand import NOON, add_book, book, facts, post, two_tenants

from loraplex_platform.audit.trail import changing
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import ManualClock, SystemClock
from loraplex_platform.kit.principal import COMMAND_LINE
from loraplex_platform.models import BillingProfile
from loraplex_platform.tenants.service import TenantService
from loraplex_platform.usage.budget_service import BudgetService, projected
from loraplex_platform.usage.ledger_repository import LedgerRepository
from loraplex_platform.usage.money import PICO
from loraplex_platform.usage.periods import Period
from loraplex_platform.usage.price_service import PriceService
from loraplex_platform.usage.spending import Spending

CENT = PICO // 100
DEAR = {"prices": [{"kind": "completion", "usd_per_million": "100"}]}  # a hundred tokens a cent
ASK = {"model": BASE, "messages": [{"role": "user", "content": "hi"}]}


def budgets_of(database: Database, clock: ManualClock | SystemClock) -> BudgetService:
    return BudgetService(database, clock, Spending(PriceService(database, clock)))


async def limited(database: Database, pico: int, *, is_hard: bool = True) -> str:
    """Gives acme dear prices and a budget for each month; its id."""
    tenant = await TenantService(database, SystemClock()).get("acme")
    await add_book(database, book(DEAR, id="dear", tenant_id=tenant.id))
    budgets = budgets_of(database, SystemClock())
    await budgets.set(tenant.id, "tenant", tenant.id, "month", pico, is_hard=is_hard)
    return tenant.id


async def owed(database: Database, tenant_id: str) -> int:
    async with database.reading() as session:
        return await LedgerRepository(session).balance(tenant_id, "receivable")


async def test_one_cent_under_fifty_parallel_requests(served: Served) -> None:
    database = served.app.state.database
    acme = await limited(database, CENT)
    client = served.client()

    async def ask() -> bool:
        try:
            await client.chat.completions.create(**ASK, max_tokens=20)
        except RateLimitError:
            return False
        return True

    admitted = sum(await asyncio.gather(*(ask() for _ in range(50))))
    await served.app.state.inference.tasks.drain()
    spent = await owed(database, acme)
    assert 0 < admitted < 50
    assert spent <= CENT + admitted * 20 * 100_000_000  # what was cut from the last estimates
    assert spent <= CENT * 1.2  # 256 tokens are reserved while nothing is known, cut to 20


async def test_a_budget_is_not_pinned_by_huge_limits(served: Served) -> None:
    database = served.app.state.database
    small = ASK | {"max_tokens": 1500, "seed": 3, "stop": ["e", "a", "t", "o"]}
    client = served.client()
    await client.chat.completions.create(**small)
    acme = await limited(database, CENT)
    await asyncio.sleep(1)  # until the limits are read again
    await client.chat.completions.create(**small)
    cost = await owed(database, acme)
    budgets = budgets_of(database, SystemClock())
    await budgets.set(acme, "tenant", acme, "month", cost * 20, is_hard=True)
    await asyncio.sleep(1)
    spent = [await owed(database, acme)]
    while spent[-1] + cost <= cost * 20:
        await client.chat.completions.create(**small)
        spent.append(await owed(database, acme))
    assert len(spent) >= 19
    with pytest.raises(RateLimitError) as caught:
        await client.chat.completions.create(**small)
    assert caught.value.code == "insufficient_quota"


async def test_a_reservation_is_at_the_price_of_its_tier(served: Served) -> None:
    """A budget for 200 tokens at the standard price is one for 400 at the batch price."""
    database = served.app.state.database
    await limited(database, 2 * CENT)
    acme = await TenantService(database, SystemClock()).get("acme")
    tiers = DEAR | {"tier_percent": {"batch": 50}}
    await add_book(
        database, book(tiers, at=datetime(2026, 1, 2, tzinfo=UTC), id="tiers", tenant_id=acme.id)
    )
    served.engine.step_s = 0.01
    client, tier = served.client(), "flex"
    held = [
        asyncio.create_task(client.chat.completions.create(**ASK, max_tokens=99, service_tier=tier))
        for _ in range(5)
    ]
    answers = await asyncio.gather(*held, return_exceptions=True)
    assert [error for error in answers if isinstance(error, RateLimitError)] == []


async def test_a_restarted_server_knows_what_was_spent(
    make_app: Callable[..., FastAPI], served: Served
) -> None:
    await limited(served.app.state.database, CENT)
    await served.client().chat.completions.create(**ASK, max_tokens=120)
    async with listening(make_app()) as base_url:
        again = replace(served, base_url=base_url).client()
        with pytest.raises(RateLimitError):
            await again.chat.completions.create(**ASK, max_tokens=1)


async def test_a_soft_budget_refuses_nobody(served: Served) -> None:
    acme = await limited(served.app.state.database, CENT, is_hard=False)
    for _ in range(3):
        await served.client().chat.completions.create(**ASK, max_tokens=60)
    budgets = budgets_of(served.app.state.database, SystemClock())
    assert await budgets.watch() == 3
    assert await budgets.watch() == 0
    first = await budgets.alert_page(acme, after=None, limit=2)
    rest = await budgets.alert_page(acme, after=first[-1].id, limit=2)
    assert [alert.percent for alert in (*first, *rest)] == [50, 80, 100]
    assert await budgets.alert_page(acme, after=rest[-1].id, limit=2) == []
    assert len(await budgets.alert_page(acme, after="budget", limit=9)) == 3  # nobody's id


async def test_a_window_follows_the_tenants_zone(database: Database) -> None:
    acme, _ = await two_tenants(database)
    clock = ManualClock(datetime(2026, 6, 30, 19, tzinfo=UTC))  # already July in Kathmandu
    async with changing(database, COMMAND_LINE, clock) as session:
        session.add(BillingProfile(tenant_id=acme, zone="Asia/Kathmandu"))
    june, july = (datetime(2026, 6, 30, 18, minute, tzinfo=UTC) for minute in (14, 15))
    await post(database, [facts(acme, started_at=at) for at in (june, june, july)])
    budgets = budgets_of(database, clock)
    await budgets.set(acme, "tenant", acme, "month", PICO, is_hard=False)
    [state] = await budgets.of_tenant(acme)
    assert state.window.start == july
    assert state.spent_pico == await owed(database, acme) // 3
    clock.advance(-3600)
    [state] = await budgets.of_tenant(acme)
    assert state.spent_pico == await owed(database, acme) // 3 * 2


async def test_projects_and_keys_have_budgets_of_their_own(database: Database) -> None:
    acme, _ = await two_tenants(database)
    await post(database, [facts(acme, key_id="k1"), facts(acme, key_id="k2", project_id="p2")])
    budgets = budgets_of(database, ManualClock(NOON))
    for level, subject in (("tenant", acme), ("project", "p2"), ("key", "k1")):
        await budgets.set(acme, level, subject, "day", PICO, is_hard=False)
    whole = await owed(database, acme)
    states = {state.budget.level: state.spent_pico for state in await budgets.of_tenant(acme)}
    assert states == {"tenant": whole, "project": whole // 2, "key": whole // 2}
    await budgets.remove("key", "k1", "day")
    assert len(await budgets.of_tenant(acme)) == 2


def test_projection_keeps_the_pace() -> None:
    window = Period(NOON, NOON + timedelta(days=10))
    assert projected(30, window, NOON + timedelta(days=1)) == 300
    assert projected(30, window, NOON) == 30
