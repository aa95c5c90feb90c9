"""What a tenant stored goes when it is too old; its books stay."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import func
from tests.platform.batch_stand import jsonl, line, run
from tests.platform_stand import BASE, Served
from tests.usage_stand import facts, post

from loraplex_platform.admission.models import RejectionCount, RejectionSamples
from loraplex_platform.batches.models import Batch
from loraplex_platform.control import retention
from loraplex_platform.control.retention import PROMPT_LIFE, Retention
from loraplex_platform.db.content import content_models
from loraplex_platform.db.database import Database
from loraplex_platform.db.scope import across_tenants
from loraplex_platform.events.models import Delivery
from loraplex_platform.files.models import StoredFile
from loraplex_platform.kit.clock import ManualClock, SystemClock
from loraplex_platform.kit.principal import COMMAND_LINE, Principal
from loraplex_platform.models import LedgerEntry, UsageEvent
from loraplex_platform.prompts.models import StoredPrompt
from loraplex_platform.prompts.service import PromptService
from loraplex_platform.tenants.service import TenantService

DAYS = 10
AGED = [StoredPrompt, RejectionCount, RejectionSamples, Batch, Delivery]


async def count(database: Database, model: type[Any], tenant_id: str) -> int:
    async with database.reading() as session:
        rows = across_tenants(model).where(model.tenant_id == tenant_id)
        return await session.scalar(rows.with_only_columns(func.count())) or 0


def after(days: float) -> ManualClock:
    return ManualClock(SystemClock().now() + timedelta(days=days))


async def keep_prompts(database: Database, tenant_id: str, at: datetime, count: int = 1) -> None:
    prompts = PromptService(database, ManualClock(at))
    who = Principal(tenant_id, "proj", "key")
    for i in range(count):
        await prompts.keep(who, f"req_{at:%s}_{i}", BASE, {"prompt": "hi"}, ["ho"])


async def fill(served: Served) -> str:
    """One row of everything that a tenant's requests leave behind; the tenant's id."""
    app, client = served.app, served.client()
    database, acme = app.state.database, await app.state.tenants.get("acme")
    change = {"retention_days": DAYS, "stores_prompts": True}
    await app.state.tenants.change(COMMAND_LINE, acme.id, change)
    await app.state.webhooks.create(COMMAND_LINE, acme.id, "https://example.org/", ["*"])
    await client.chat.completions.create(
        model=BASE,
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=2,
        user="ada",
        metadata={"case": "7"},
    )
    await run(client, jsonl(line("a")))
    await app.state.inference.tasks.drain()
    now = SystemClock().now()
    async with database.unit_of_work() as session:
        minute = {"minute": now, "key_id": "k", "reason": "r", "limit": "l", "count": 1}
        session.add(RejectionCount(tenant_id=acme.id, **minute))
        old = {"at": now.isoformat()}
        new = {"at": (now + timedelta(days=DAYS)).isoformat()}
        session.add(RejectionSamples(tenant_id=acme.id, key_id="k", samples=[old, new]))
    tenant_id: str = acme.id
    return tenant_id


async def test_rows_that_are_too_old_go_and_younger_ones_stay(served: Served) -> None:
    acme, database = await fill(served), served.app.state.database
    before = {model: await count(database, model, acme) for model in AGED}
    assert all(before.values())
    await Retention(database, after(DAYS - 0.1)).apply()
    assert {model: await count(database, model, acme) for model in AGED} == before
    await Retention(database, after(DAYS + 1.1)).apply()
    gone = [StoredPrompt, RejectionCount, Batch, Delivery]
    assert [await count(database, model, acme) for model in gone] == [0] * 4
    async with database.reading() as session:
        [row] = await session.scalars(across_tenants(RejectionSamples))
        files = list(await session.scalars(across_tenants(StoredFile)))
    assert len(row.samples) == 1  # the younger one
    assert len(files) == 2  # the job's input and its output
    assert all(file.deleted_at is not None for file in files)


async def test_events_keep_their_bill_and_lose_what_clients_sent_along(served: Served) -> None:
    acme, database = await fill(served), served.app.state.database
    money = await count(database, LedgerEntry, acme)
    await Retention(database, after(DAYS + 0.1)).apply()
    async with database.reading() as session:
        events = list(await session.scalars(across_tenants(UsageEvent)))
    assert len(events) == 2
    assert all(event.prompt_tokens and event.completion_tokens for event in events)
    assert {(e.end_user, e.client_request_id, e.request_metadata) for e in events} == {(None,) * 3}
    assert await count(database, LedgerEntry, acme) == money


async def test_tenant_without_retention_keeps_all_but_its_prompts(served: Served) -> None:
    acme, database = await fill(served), served.app.state.database
    await served.app.state.tenants.change(COMMAND_LINE, acme, {"retention_days": None})
    await Retention(database, after(PROMPT_LIFE.days + 1)).apply()
    assert await count(database, StoredPrompt, acme) == 0
    kept = [model for model in AGED if model is not StoredPrompt]
    assert all([await count(database, model, acme) for model in kept])


async def test_one_tenants_retention_is_not_anothers(database: Database) -> None:
    tenants, now = TenantService(database, SystemClock()), SystemClock().now()
    acme = await tenants.create("acme", {"retention_days": 1})
    globex = await tenants.create("globex", {"retention_days": 365})
    await keep_prompts(database, acme.id, now)
    await keep_prompts(database, globex.id, now + timedelta(seconds=1))
    await Retention(database, after(2)).apply()
    rows = [await count(database, StoredPrompt, tenant.id) for tenant in (acme, globex)]
    assert rows == [0, 1]


async def test_many_rows_go_in_many_small_transactions(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "AT_ONCE", 3)
    tenant = await TenantService(database, SystemClock()).create("acme", {"retention_days": 1})
    await keep_prompts(database, tenant.id, SystemClock().now(), count=7)
    await post(database, [facts(tenant.id, end_user="ada") for _ in range(7)])
    begun: list[object] = []
    unit_of_work = database.unit_of_work
    monkeypatch.setattr(database, "unit_of_work", lambda: begun.append(1) or unit_of_work())
    assert await Retention(database, after(1_000)).apply() == 14
    assert len(begun) >= 6


def test_everything_with_a_tenants_words_in_it_is_marked() -> None:
    """A new table with content must say so, or it would outlive its tenant."""
    names = {model.__tablename__ for model in content_models()}
    assert names == {
        "batch",
        "batch_line",
        "prefix",
        "rejection_count",
        "rejection_samples",
        "stored_prompt",
        "webhook_delivery",
    }


async def test_housekeeper_applies_it_now_and_then(app: FastAPI) -> None:
    acme = await app.state.tenants.get("acme")
    await keep_prompts(app.state.database, acme.id, SystemClock().now() - timedelta(days=99))
    await app.state.housekeeper.tidy()
    assert await count(app.state.database, StoredPrompt, acme.id) == 0
