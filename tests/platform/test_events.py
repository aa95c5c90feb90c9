"""Tenants' servers are told what happens to them, signed, once the change is committed."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import httpx2
import pytest
from fastapi import FastAPI
from standardwebhooks.webhooks import Webhook as Verifier
from tests.adapter_stand import AdapterClient, base_folder, code_of, weights_of
from tests.platform.batch_stand import jsonl, line, run, submit, until_final
from tests.platform_stand import Seeded, Served, letter_engine, listening
from tests.until import until
from tests.usage_stand import NOON, add_book, book, facts, post
from tests.webhook_receiver import receiving

from loraplex_platform.admission.service import Subject
from loraplex_platform.auth.schemas import KeyPath
from loraplex_platform.batches.models import Batch
from loraplex_platform.db.database import Database
from loraplex_platform.db.scope import across_tenants, change_across_tenants
from loraplex_platform.events.catalogue import PAYLOADS, EventType
from loraplex_platform.events.models import Delivery
from loraplex_platform.kit.clock import ManualClock
from loraplex_platform.kit.principal import COMMAND_LINE
from loraplex_platform.models import Tenant
from loraplex_platform.usage.budget_service import BudgetService
from loraplex_platform.usage.invoice_service import InvoiceService, Month
from loraplex_platform.usage.money import PICO
from loraplex_platform.usage.price_service import PriceService
from loraplex_platform.usage.spending import Spending

CENT = PICO // 100
DEAR = {"prices": [{"kind": "completion", "usd_per_million": "1000"}]}  # ten tokens a cent
DOCS = Path(__file__).parents[2] / "deploy" / "docs" / "control-plane.md"


async def listen(app: FastAPI, url: str = "https://example.org/", *events: str) -> str:
    """A webhook of acme's; its secret."""
    acme = await acme_of(app)
    made = await app.state.webhooks.create(COMMAND_LINE, acme.id, url, list(events) or ["*"])
    secret: str = made.secret
    return secret


async def acme_of(app: FastAPI) -> Tenant:
    acme: Tenant = await app.state.tenants.get("acme")
    return acme


async def told(database: Database) -> list[tuple[str, dict[str, Any]]]:
    """What lies in the outbox, oldest first."""
    async with database.reading() as session:
        rows = await session.scalars(across_tenants(Delivery).order_by(Delivery.id))
        return [(row.type, row.data) for row in rows]


@pytest.fixture
async def slow(make_app: Callable[..., FastAPI], keys: Seeded) -> AsyncIterator[Served]:
    """An API that runs one line of a batch at a time, and slowly."""
    engine = letter_engine(step_s=0.15)
    app = make_app(engine=engine, batch_concurrency=1, batch_tick_s=0.1)
    async with listening(app) as base_url, AsyncExitStack() as stack:
        yield Served(app, engine, base_url, keys, stack)


async def test_completed_and_failed_batches_are_told(served: Served) -> None:
    await listen(served.app)
    good = await run(served.client(), jsonl(line("a")))
    bad = await run(served.client(), jsonl("{"))
    assert await told(served.app.state.database) == [
        ("batch.completed", {"id": good.id}),
        ("batch.failed", {"id": bad.id}),
    ]


async def test_cancelled_and_expired_batches_are_told(slow: Served) -> None:
    await listen(slow.app)
    client, database = slow.client(), slow.app.state.database
    cancelled = await submit(client, jsonl(*(line(str(i)) for i in range(60))))
    await until(lambda: slow.engine.num_running > 0)
    await client.batches.cancel(cancelled.id)
    await until_final(client, cancelled.id)
    slow.engine.spare = 0.0
    expired = await submit(client, jsonl(line("a")))
    async with database.unit_of_work() as session:
        row = change_across_tenants(Batch).where(Batch.id == expired.id)
        await session.execute(row.values(expires_at=Batch.created_at))
    await until_final(client, expired.id)
    assert await told(database) == [
        ("batch.cancelled", {"id": cancelled.id}),
        ("batch.expired", {"id": expired.id}),
    ]


async def test_budget_that_is_half_spent_is_told_once(app: FastAPI) -> None:
    await listen(app)
    database, acme, clock = app.state.database, await acme_of(app), ManualClock(NOON)
    await add_book(database, book(DEAR, id="dear", tenant_id=acme.id))
    budgets = BudgetService(database, clock, Spending(PriceService(database, clock)))
    await budgets.set(acme.id, "tenant", acme.id, "month", 2 * CENT, is_hard=False)
    await post(database, [facts(acme.id, prompt_tokens=0, cached_tokens=0)])
    assert (await budgets.watch(), await budgets.watch()) == (1, 0)
    [(type, data)] = await told(database)
    assert type == "budget.threshold_reached"
    assert (data["percent"], data["spent"], data["amount"]) == (50, "0.01", "0.02")


async def test_final_invoice_is_told_and_a_refused_one_is_not(app: FastAPI) -> None:
    await listen(app)
    acme, database = await acme_of(app), app.state.database
    early = InvoiceService(database, ManualClock(NOON), "Example Inc.")
    with pytest.raises(Exception, match="not over"):
        await early.finalize(acme, Month(2026, 6))
    late = InvoiceService(database, ManualClock(NOON + timedelta(days=60)), "Example Inc.")
    row = await late.finalize(acme, Month(2026, 6))
    data = {"id": row.id, "number": "INV-000001", "total": "0.00"}
    assert await told(database) == [("invoice.finalized", data)]


async def test_life_of_a_key_is_told(app: FastAPI) -> None:
    await listen(app)
    acme, keys = await acme_of(app), app.state.keys
    project = (await app.state.tenants.default_project(acme)).id
    made = await keys.create(acme.id, project, name="ci")
    await keys.rotate(COMMAND_LINE, KeyPath(acme.id, project, made.id), timedelta(0))
    await keys.revoke(made.id)
    await keys.revoke(made.id)
    data = {"id": made.id, "project_id": project, "name": "ci"}
    types = ("api_key.created", "api_key.rotated", "api_key.revoked")
    assert await told(app.state.database) == [(type, data) for type in types]


async def test_states_of_a_tenant_are_told(app: FastAPI) -> None:
    await listen(app)
    acme = await acme_of(app)
    for state in ("suspended", "suspended", "active", "closing"):
        await app.state.tenants.move(COMMAND_LINE, acme.id, state)
    data = {"id": acme.id, "name": "acme"}
    types = ("tenant.suspended", "tenant.resumed", "tenant.closed")
    assert await told(app.state.database) == [(type, data) for type in types]


async def test_every_way_that_limits_change_is_told(app: FastAPI) -> None:
    await listen(app)
    acme, limits, plans = await acme_of(app), app.state.limits, app.state.plans
    plan = await plans.create("gold", {"limits": {"requests_per_minute": 5}})
    await app.state.tenants.change(COMMAND_LINE, acme.id, {"plan_id": plan.id})
    await plans.change(COMMAND_LINE, plan.id, {"limits": {"requests_per_minute": 6}})
    await plans.change(COMMAND_LINE, plan.id, {"name": "silver"})  # no limit of anybody's
    of, dimension = Subject(acme.id, "tenant", acme.id), "requests_per_minute"
    await limits.set(of, dimension, 7, strict=False)
    await limits.override(of, dimension, 8, expires_at=None)
    await limits.end_override(of, dimension)
    await limits.remove(of, dimension)
    await limits.remove(of, dimension)  # there was none
    events = await told(app.state.database)
    assert {type for type, _ in events} == {"limits.changed"}
    assert {(data["level"], data["subject"]) for _, data in events} == {("tenant", acme.id)}
    assert [data["dimension"] for _, data in events] == [None] * 2 + [dimension] * 4


async def test_life_of_an_adapter_is_told(
    make_app: Callable[..., FastAPI], keys: Seeded, tmp_path: Path
) -> None:
    app = make_app(model=str(base_folder(tmp_path / "base")))
    await listen(app)
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://test"
    ) as http:
        client = AdapterClient(http, keys.acme)
        first = await client.upload("poet")
        second = await client.upload("poet", weights_of(1), activate="false")
        await client.call("PATCH", "/poet", {"current": 2})
        await client.call("POST", "/poet/rollback")
        refused = await client.upload("bad", b"no safetensors")
    assert (first.status_code, second.status_code, refused.status_code) == (201, 201, 400)
    events = await told(app.state.database)
    told_of = [(type, data.get("version")) for type, data in events]
    assert told_of == [
        ("adapter.ready", 1),
        ("adapter.activated", 1),
        ("adapter.ready", 2),
        ("adapter.activated", 2),
        ("adapter.activated", 1),
        ("adapter.refused", None),
    ]
    assert ((400, events[-1][1]["code"]), events[-1][1]["name"]) == (code_of(refused), "bad")


async def test_what_arrives_is_what_the_standard_library_verifies(
    make_app: Callable[..., FastAPI], keys: Seeded
) -> None:
    engine = letter_engine()
    app = make_app(engine=engine, webhook_networks=("127.0.0.0/8",))
    with receiving() as receiver:
        async with listening(app) as base_url, AsyncExitStack() as stack:
            served = Served(app, engine, base_url, keys, stack)
            verifier = Verifier(await listen(app, receiver.url))
            batch = await run(served.client(), jsonl(line("a")))
            await until(lambda: bool(receiver.got))
    [(headers, body)] = receiver.got
    event = verifier.verify(body, headers)
    assert (event["type"], event["data"]) == ("batch.completed", {"id": batch.id})
    with pytest.raises(Exception, match="signature"):
        verifier.verify(body.replace(b"completed", b"cancelled"), headers)


def test_catalogue_and_docs_name_the_same_events() -> None:
    assert set(PAYLOADS) == set(get_args(EventType))
    section = DOCS.read_text().split("## Webhooks")[1].split("\n## ")[0]
    documented = set(re.findall(r"^\| `([a-z_.]+)` \|", section, re.MULTILINE))
    assert documented == set(PAYLOADS)
