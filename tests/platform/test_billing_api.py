"""Money over the admin API: prices, credits, budgets, invoices, usage across tenants, audit rows."""

import hashlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from fastapi import FastAPI
from tests.admin_stand import AdminStand, admin_stand
from tests.platform_stand import Seeded
from tests.usage_stand import LIST, add_adapter_of, facts, post

from loraplex_platform.audit.repository import AuditFilter
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.principal import COMMAND_LINE
from loraplex_platform.usage.ledger_repository import LedgerRepository
from loraplex_platform.usage.money import dollars

BILLING = "/tenants/{tenant_id}/billing"
CREDITS = "/tenants/{tenant_id}/credits"
BUDGETS = "/tenants/{tenant_id}/budgets"
INVOICES = "/tenants/{tenant_id}/invoices"
MARCH = datetime(2024, 3, 10, 12, tzinfo=UTC)
BIG = {"prompt_tokens": 10**6, "cached_tokens": 0, "completion_tokens": 10**6}  # half a dollar


@pytest.fixture
async def stand(app: FastAPI, keys: Seeded) -> AsyncIterator[AdminStand]:
    async with admin_stand(app) as stand:
        events = [facts(stand.acme, started_at=MARCH, **BIG) for _ in range(3)]
        await post(app.state.database, [*events, facts(stand.globex, started_at=MARCH, **BIG)])
        yield stand


async def actions_in(app: FastAPI) -> list[str]:
    events = await app.state.audit.page(COMMAND_LINE, AuditFilter(), limit=50)
    return [event.action for event in events]


async def test_an_invoice_from_draft_to_paid(stand: AdminStand, app: FastAPI) -> None:
    body = {"tax_percent": "19.5", "minimum_fee": "2", "address": "Street 1\nBerlin"}
    answer = await stand.call("PUT", BILLING, body)
    assert (answer.json()["tax_percent"], answer.json()["credits"]["available"]) == ("19.5", "0.0")
    draft = (await stand.call("GET", INVOICES + "/draft?month=2024-03", key="acme")).json()
    assert (draft["subtotal"], draft["minimum_fee"], draft["total"]) == ("1.50", "0.50", "2.39")
    made = await stand.made(INVOICES, {"month": "2024-03"})
    assert (made["status"], made["total"]) == ("final", "2.39")
    document = await stand.call("GET", f"{INVOICES}/{made['id']}", key="acme_viewer")
    assert hashlib.sha256(document.content).hexdigest() == made["sha256"]
    page = await stand.call("GET", f"{INVOICES}/{made['id']}?format=html")
    assert "Street 1" in page.text
    assert "@media print" in page.text
    for _ in range(2):
        paid = await stand.call("POST", f"{INVOICES}/{made['id']}/pay")
        assert paid.json()["status"] == "paid"
    assert (await stand.call("POST", f"{INVOICES}/{made['id']}/void")).status_code == 409
    assert (await stand.call("POST", INVOICES, {"month": "2024-03"})).status_code == 409
    actions = await actions_in(app)
    for action in ("invoice.updated", "invoice.created", "billing_profile.created"):
        assert actions.count(action) == 1


async def test_a_voided_invoice_leaves_a_credit_note(stand: AdminStand) -> None:
    made = await stand.made(INVOICES, {"month": "2024-03"})
    note = (await stand.call("POST", f"{INVOICES}/{made['id']}/void")).json()
    assert (note["title"], note["total"]) == ("Credit note", "-1.50")
    again = await stand.made(INVOICES, {"month": "2024-03"})
    listed = (await stand.call("GET", INVOICES)).json()["data"]
    assert [(i["number"], i["status"]) for i in listed] == [
        ("INV-000001", "void"),
        ("INV-000002", "final"),
        ("INV-000003", "final"),
    ]
    assert again["number"] == "INV-000003"


async def test_a_line_or_an_amount_of_an_invoice_is_credited(stand: AdminStand) -> None:
    made = await stand.made(INVOICES, {"month": "2024-03"})
    where = f"{INVOICES}/{made['id']}/credit"
    note = (await stand.call("POST", where, {"amount": "0.25", "reason": "late answers"})).json()
    assert (note["title"], note["total"], note["status"]) == ("Credit note", "-0.25", "final")
    rest = (await stand.call("POST", where, {"line": 1})).json()
    assert rest["number"] == "INV-000003"
    for body in ({"amount": "0.001"}, {"amount": "9"}, {"line": 99}, {"line": 1}):
        assert (await stand.call("POST", where, body)).status_code == 400


async def test_the_log_does_not_repeat_the_document(stand: AdminStand, app: FastAPI) -> None:
    await stand.made(INVOICES, {"month": "2024-03"})
    [event] = await app.state.audit.page(COMMAND_LINE, AuditFilter(object_type="invoice"))
    assert "document" not in event.after
    assert event.after["total_cents"] == 150
    assert event.actor_kind == "admin_key"


async def test_another_tenants_invoice_cannot_be_touched(stand: AdminStand) -> None:
    theirs = await stand.made(f"/tenants/{stand.globex}/invoices", {"month": "2024-03"})
    for method, end in (("GET", ""), ("POST", "/pay"), ("POST", "/void"), ("POST", "/credit")):
        body = {} if end == "/credit" else None
        answer = await stand.call(method, f"{INVOICES}/{theirs['id']}{end}", body)
        assert answer.status_code == 404


async def test_credits_are_granted_once_and_seen(stand: AdminStand) -> None:
    body = {"key": "welcome", "amount": "25", "funding": "paid", "priority": 5}
    grant = await stand.made(CREDITS, body)
    assert (grant["amount"], grant["priority"]) == ("25.0", 5)
    assert (await stand.call("POST", CREDITS, body)).status_code == 409
    listed = (await stand.call("GET", CREDITS, key="acme")).json()["data"]
    assert [g["key"] for g in listed] == ["welcome"]
    billing = (await stand.call("GET", BILLING, key="acme")).json()
    assert billing["credits"] == {"settled": "25.0", "pending": "0.0", "available": "25.0"}


async def test_a_profile_that_changed_since_it_was_read_is_not_replaced(stand: AdminStand) -> None:
    seen = (await stand.call("GET", BILLING)).headers["etag"]
    first = await stand.call("PUT", BILLING, {"payment_days": 14}, if_match=seen)
    stale = await stand.call("PUT", BILLING, {"payment_days": 60}, if_match=seen)
    assert (first.status_code, stale.status_code) == (200, 412)
    told = await stand.call("GET", BILLING)
    assert told.json()["payment_days"] == 14
    assert told.headers["etag"] == first.headers["etag"] != seen
    answers = [
        await stand.call("PUT", BILLING, {"payment_days": 60}, **given)
        for given in ({"if_match": first.headers["etag"]}, {})
    ]
    assert [answer.status_code for answer in answers] == [200, 200]


async def test_budgets_of_tenant_and_project(stand: AdminStand, app: FastAPI) -> None:
    await stand.call("PUT", BUDGETS + "/month", {"amount": "10", "is_hard": True})
    project = f"?project_id={stand.project}"
    await stand.call("PUT", BUDGETS + "/day" + project, {"amount": "0.5"})
    listed = (await stand.call("GET", BUDGETS, key="acme")).json()["data"]
    states = [(b["level"], b["span"], b["amount"], b["is_hard"]) for b in listed]
    assert states == [("tenant", "month", "10.0", True), ("project", "day", "0.5", False)]
    effective = (await stand.call("GET", "/tenants/{tenant_id}/effective", key="acme")).json()
    assert [limit["source"] for limit in effective["limits"]] == ["budget"]
    assert (await stand.call("DELETE", BUDGETS + "/month")).json()["deleted"]
    assert len((await stand.call("GET", BUDGETS)).json()["data"]) == 1
    assert (await stand.call("DELETE", BUDGETS + "/month")).status_code == 404
    assert "budget.deleted" in await actions_in(app)


async def test_a_prepaid_tenant_is_told_so_among_its_limits(stand: AdminStand) -> None:
    await stand.call("PUT", BILLING, {"is_prepaid": True})
    await stand.made(CREDITS, {"key": "k", "amount": "3"})
    effective = (await stand.call("GET", "/tenants/{tenant_id}/effective")).json()
    [limit] = effective["limits"]
    assert (limit["dimension"], limit["source"], limit["strict"]) == (
        "prepaid_credit",
        "credit",
        True,
    )
    assert limit["value"] == 3 * 10**9


async def test_prices_are_published_and_listed(stand: AdminStand) -> None:
    when = (datetime.now(UTC) + timedelta(days=2)).replace(minute=0, second=0, microsecond=0)
    body = {"effective_from": when.isoformat(), "content": LIST, "tenant_id": stand.acme}
    await stand.made("/price_books", body)
    books = (await stand.call("GET", "/price_books")).json()["data"]
    assert [book["tenant_id"] for book in books] == [None, stand.acme]
    assert (await stand.call("POST", "/price_books", body)).status_code == 409
    wrong = body | {"content": {"prices": [{"kind": "shoes"}]}}
    assert (await stand.call("POST", "/price_books", wrong)).status_code == 400


async def test_usage_and_costs_across_tenants(stand: AdminStand, app: FastAPI) -> None:
    start = MARCH.replace(day=1, hour=0)
    database = app.state.database
    await add_adapter_of(database, stand.globex, num_bytes=2**30, created_at=start, name="big")
    ask = f"?start_time={int(start.timestamp())}&limit=31&group_by=tenant_id"
    usage = (await stand.call("GET", "/usage/completions" + ask)).json()
    found = {r["tenant_id"]: r["num_model_requests"] for b in usage["data"] for r in b["results"]}
    assert found == {stand.acme: 3, stand.globex: 1}
    costs = (await stand.call("GET", "/usage/costs" + ask)).json()
    sums = dict.fromkeys(found, Decimal(0))
    for bucket in costs["data"]:
        for result in bucket["results"]:
            sums[result["tenant_id"]] += Decimal(str(result["amount"]["value"]))
    async with database.reading() as session:
        owed = await LedgerRepository(session).balance(stand.acme, "receivable")
    assert sums[stand.acme] == dollars(owed) == Decimal("1.5")
    assert sums[stand.globex] == Decimal("0.5") + 31 * Decimal("0.048")
    only = (await stand.call("GET", f"/usage/costs{ask}&tenant_id={stand.acme}")).json()
    assert {r["tenant_id"] for b in only["data"] for r in b["results"]} == {stand.acme}


async def test_a_tenants_key_cannot_group_by_tenant(stand: AdminStand, app: FastAPI) -> None:
    ask = "/usage/completions?start_time=0&group_by=tenant_id"
    assert (await stand.call("GET", ask, key="acme")).status_code == 403


async def test_exports_and_manifests_of_a_tenant(stand: AdminStand) -> None:
    where = "/tenants/{tenant_id}/exports/2024-03/events.jsonl"
    manifest = (await stand.call("GET", where + ".manifest.json", key="acme")).json()
    answer = await stand.call("GET", where)
    assert manifest["rows"] == answer.content.count(b"\n") == 3
    assert answer.headers["etag"] == f'"{manifest["sha256"]}"'
    assert hashlib.sha256(answer.content).hexdigest() == manifest["sha256"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", INVOICES, {"month": "2024-13"}),
        ("POST", INVOICES, {"month": "soon"}),
        ("PUT", BILLING, {"zone": "Mars/Base"}),
        ("PUT", BILLING, {"minimum_fee": "0.001"}),
        ("POST", CREDITS, {"key": "k", "amount": "0"}),
        ("POST", CREDITS, {"key": "k", "amount": "1e3"}),
        ("POST", CREDITS, {"key": "k", "amount": "9223372.04"}),  # beyond a column's 64 bits
        ("PUT", BUDGETS + "/month", {"amount": "-1"}),
        ("PUT", BUDGETS + "/month", {"amount": "9223372.036854775808"}),
        ("PUT", BUDGETS + "/year", {"amount": "1"}),
        ("GET", "/tenants/{tenant_id}/exports/2024-03/focus.jsonl", None),
    ],
)
async def test_mistakes_are_refused(
    stand: AdminStand, method: str, path: str, body: object
) -> None:
    assert (await stand.call(method, path, body)).status_code == 400


async def test_the_month_that_runs_cannot_be_final(stand: AdminStand) -> None:
    body = {"month": f"{SystemClock().now():%Y-%m}"}
    assert (await stand.call("POST", INVOICES, body)).status_code == 400
