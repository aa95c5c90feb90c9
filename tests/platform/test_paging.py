"""Sorted pages: each row once, in order, wherever the pages are cut."""

from datetime import timedelta
from typing import Any

import pytest
from tests.usage_stand import NOON, two_tenants

from loraplex_platform.audit.trail import changing
from loraplex_platform.auth.repository import KEYS
from loraplex_platform.batches.repository import BATCHES
from loraplex_platform.catalogue.repository import NAMES
from loraplex_platform.db.database import Database
from loraplex_platform.db.migrations import upgrade
from loraplex_platform.db.paging import Sorting
from loraplex_platform.db.scope import across_tenants, for_platform
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.principal import COMMAND_LINE
from loraplex_platform.models import ApiKey, KeyUse, Plan
from loraplex_platform.people.repository import PEOPLE
from loraplex_platform.tenants.repository import PLANS, PROJECTS, TENANTS
from loraplex_platform.tenants.service import TenantService
from loraplex_platform.usage.request_repository import REQUESTS
from loraplex_platform.webhooks.repository import WEBHOOKS

TABLES = (KEYS, BATCHES, NAMES, PEOPLE, PLANS, PROJECTS, TENANTS, REQUESTS, WEBHOOKS)
MADE = 23


def key_of(tenant_id: str, project_id: str, number: int) -> ApiKey:
    """Names, ends and ids each in an order of their own; some are equal, some are not there."""
    return ApiKey(
        id=f"key{(number * 7) % MADE:02}", tenant_id=tenant_id, project_id=project_id,
        name="" if number % 5 == 0 else f"n{number % 4}", digest="", pepper_id="", last_four="",
        scopes=[], created_at=NOON + timedelta(hours=(number * 11) % MADE),
        expires_at=None if number % 3 == 0 else NOON + timedelta(days=number % 6),
    )  # fmt: skip


async def make_keys(database: Database) -> dict[str, dict[str, Any]]:
    """What each of many keys is sorted by."""
    acme, _ = await two_tenants(database)
    tenants = TenantService(database, SystemClock())
    project = await tenants.default_project(await tenants.get("acme"))
    keys = [key_of(acme, project.id, number) for number in range(MADE)]
    used = {key.id: NOON - timedelta(hours=i % 6) for i, key in enumerate(keys) if i % 4}
    async with changing(database, COMMAND_LINE, SystemClock()) as session:
        session.add_all(keys)
        await session.flush()
        session.add_all(
            KeyUse(key_id=id, tenant_id=acme, last_used_at=at) for id, at in used.items()
        )
    return {
        key.id: {
            "name": key.name or None,
            "used": used.get(key.id),
            "expires": key.expires_at,
            "made": key.created_at,
        }
        for key in keys
    }


async def walked(database: Database, order: str, limit: int) -> list[str]:
    """The ids of all keys, page by page."""
    seen: list[str] = []
    while True:
        after = seen[-1] if seen else None
        async with database.reading() as session:
            rows = await KEYS.page(session, across_tenants(ApiKey), order, after, limit)
        seen += [row.id for row in rows]
        if len(rows) < limit:
            return seen


def in_order(values: dict[str, dict[str, Any]], column: str, *, is_descending: bool) -> list[str]:
    known = [id for id in values if values[id][column] is not None]
    lacking = sorted(values.keys() - set(known), reverse=is_descending)
    known.sort(key=lambda id: (values[id][column], id), reverse=is_descending)
    return known + lacking


async def check_walks(database: Database, *limits: int) -> None:
    values = await make_keys(database)
    for column in KEYS.columns:
        for sign in ("", "-"):
            expected = in_order(values, column, is_descending=sign == "-")
            for limit in limits:
                assert await walked(database, sign + column, limit) == expected, (sign, column)
    assert await walked(database, "nonsense", 5) == sorted(values)
    assert await walked(database, "-nonsense", 5) == sorted(values)


async def check_orders(database: Database, table: Sorting) -> None:
    """Each can be asked for."""
    model = table.key.class_
    rows = for_platform(model) if model is Plan else across_tenants(model)
    for column in table.columns:
        for sign in ("", "-"):
            async with database.reading() as session:
                await table.page(session, rows, sign + column, "nobody", 5)


async def test_each_row_is_shown_once_in_order(database: Database) -> None:
    await check_walks(database, 4)


async def test_page_behind_a_row_that_is_gone_goes_on_by_key(database: Database) -> None:
    await make_keys(database)
    async with database.reading() as session:
        rows = await KEYS.page(session, across_tenants(ApiKey), "", "key05x", 3)
    assert [row.id for row in rows] == ["key06", "key07", "key08"]


async def test_every_order_can_be_asked_for(database: Database) -> None:
    for table in TABLES:
        await check_orders(database, table)


@pytest.mark.slow
async def test_the_same_on_postgres(postgres_url: str) -> None:
    upgrade(postgres_url)
    database = Database(postgres_url)
    await check_walks(database, 1, 9)
    for table in TABLES:
        await check_orders(database, table)
    await database.close()
