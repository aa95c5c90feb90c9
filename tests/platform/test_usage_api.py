"""Usage, costs, invoices and exports over HTTP, read with the official client."""

import hashlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import httpx2
import pytest
from fastapi import FastAPI
from tests.platform_stand import NO_TLS, Served
from tests.usage_stand import add_adapter_of, facts, post

from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import ManualClock, SystemClock
from loraplex_platform.models import Tenant
from loraplex_platform.tenants.service import TenantService
from loraplex_platform.usage.invoice_service import InvoiceService, Month
from loraplex_platform.usage.ledger_repository import LedgerRepository
from loraplex_platform.usage.money import dollars
from loraplex_platform.usage.reports import Query, Reports, Width

DAY = timedelta(days=1)
START = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - 3 * DAY


@pytest.fixture
async def acme(served: Served) -> Tenant:
    """Two days with requests, a day without, an adapter; globex has one request too."""
    database = served.app.state.database
    tenants = TenantService(database, SystemClock())
    acme, globex = [await tenants.get(name) for name in ("acme", "globex")]
    hours = [START + timedelta(hours=h) for h in (0, 1, 1, 30)]
    tiers = ["standard", "batch", "standard", "standard"]
    events = [
        facts(acme.id, started_at=at, tier=tier, key_id=f"k{n % 2}")
        for n, (at, tier) in enumerate(zip(hours, tiers, strict=True))
    ]
    await post(database, [*events, facts(globex.id, started_at=START)])
    return acme


@pytest.fixture
async def http(served: Served) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"authorization": f"Bearer {served.keys.acme}"}
    async with httpx2.AsyncClient(
        base_url=served.base_url, headers=headers, verify=NO_TLS, timeout=30
    ) as client:
        yield client


def seconds(moment: datetime) -> int:
    return int(moment.timestamp())


async def test_usage_by_day_with_empty_buckets(http: httpx2.AsyncClient, acme: Tenant) -> None:
    answer = (
        await http.get(
            "/v1/organization/usage/completions",
            params={"start_time": seconds(START), "end_time": seconds(START + 3 * DAY)},
        )
    ).json()
    assert [len(bucket["results"]) for bucket in answer["data"]] == [1, 1, 0]
    assert [b["start_time"] for b in answer["data"]] == [seconds(START + n * DAY) for n in range(3)]
    [first] = answer["data"][0]["results"]
    assert (first["input_tokens"], first["input_cached_tokens"]) == (300, 120)
    assert (first["output_tokens"], first["num_model_requests"]) == (30, 3)
    assert first["model"] is first["project_id"] is None
    assert (answer["object"], answer["has_more"], answer["next_page"]) == ("page", False, None)


async def test_usage_is_grouped_filtered_and_paged(http: httpx2.AsyncClient, acme: Tenant) -> None:
    ask = {
        "start_time": seconds(START),
        "end_time": seconds(START + DAY),
        "bucket_width": "1h",
        "group_by[]": ["batch", "service_tier", "api_key_id"],
        "limit": 1,
    }
    pages = []
    while True:
        page = (await http.get("/v1/organization/usage/completions", params=ask)).json()
        pages += page["data"]
        if not page["has_more"]:
            break
        ask["page"] = page["next_page"]
    assert len(pages) == 24
    found = [(r["batch"], r["service_tier"], r["api_key_id"]) for r in pages[1]["results"]]
    assert sorted(found) == [(False, "default", "k0"), (True, "flex", "k1")]
    ask = {"start_time": seconds(START), "end_time": seconds(START + DAY), "api_key_ids": ["k1"]}
    only = (await http.get("/v1/organization/usage/completions", params=ask)).json()
    assert only["data"][0]["results"][0]["num_model_requests"] == 1


async def test_the_official_client_reads_usage_and_costs(served: Served, acme: Tenant) -> None:
    client = served.client(admin_api_key=served.keys.acme)
    page = await client.admin.organization.usage.completions(
        start_time=seconds(START), bucket_width="1d", group_by=["model"]
    )
    assert sum(r.num_model_requests for b in page.data for r in b.results) == 4
    costs = await client.admin.organization.usage.costs(
        start_time=seconds(START), group_by=["line_item"]
    )
    assert {r.line_item for b in costs.data for r in b.results} >= {"tiny, output tokens"}


async def test_costs_are_the_ledgers(
    served: Served, http: httpx2.AsyncClient, acme: Tenant
) -> None:
    ask = {"start_time": seconds(START), "group_by": ["line_item"]}
    answer = (await http.get("/v1/organization/costs", params=ask)).json()
    values = [
        Decimal(str(r["amount"]["value"]))
        for bucket in answer["data"]
        for r in bucket["results"]
        if "hosting" not in r["line_item"]
    ]
    async with served.app.state.database.reading() as session:
        owed = await LedgerRepository(session).balance(acme.id, "receivable")
    assert sum(values) == dollars(owed)


async def test_costs_have_hosting(served: Served, acme: Tenant) -> None:
    database = served.app.state.database
    await add_adapter_of(database, acme.id, num_bytes=2**30, created_at=START, name="big")
    reports = Reports(database, ManualClock(START + 2 * DAY))
    page = await reports.costs(acme.id, Query(seconds(START), group_by=("line_item",)))
    days = [
        r["amount"]["value"]
        for bucket in page["data"]
        for r in bucket["results"]
        if r["line_item"] == "big, adapter hosting"
    ]
    assert days == [0.048, 0.048]


async def test_operators_see_all_tenants(served: Served, acme: Tenant) -> None:
    reports = Reports(served.app.state.database, SystemClock())
    page = await reports.completions(None, Query(seconds(START), bucket_width="1h"))
    assert page["data"][0]["results"][0]["num_model_requests"] == 2


@pytest.mark.parametrize(
    ("width", "requests"),
    [("1h", [1, 2]), ("1d", [1, 3, 1]), ("1mo", [4, 1])],  # of buckets that have any
)
async def test_buckets_are_those_of_the_readers_zone(
    database: Database, width: Width, requests: list[int]
) -> None:
    """Days of Kathmandu begin at 18:15 UTC, its July on the thirtieth of June."""
    tenant = await TenantService(database, SystemClock()).create("acme")
    days = [(28, 18, 14), (28, 18, 15), (28, 19, 14), (29, 18, 14), (30, 18, 15)]
    at = [datetime(2026, 6, *day, tzinfo=UTC) for day in days]
    await post(database, [facts(tenant.id, started_at=moment) for moment in at])
    end = at[2] if width == "1h" else datetime(2026, 7, 2, tzinfo=UTC)
    query = Query(seconds(at[0]), seconds(end), width, zone=ZoneInfo("Asia/Kathmandu"))
    page = await Reports(database, ManualClock(end)).completions(tenant.id, query)
    found = [sum(r["num_model_requests"] for r in bucket["results"]) for bucket in page["data"]]
    assert [count for count in found if count] == requests
    ends = [bucket["end_time"] for bucket in page["data"]]
    assert ends[:-1] == [bucket["start_time"] for bucket in page["data"][1:]]


async def test_minutes_are_read_from_minutes(served: Served, acme: Tenant) -> None:
    database = served.app.state.database
    at = START + timedelta(minutes=7)
    await post(database, [facts(acme.id, started_at=at)])
    page = await Reports(database, ManualClock(START + DAY)).completions(
        acme.id, Query(seconds(START), seconds(START) + 600, "1m")
    )
    assert [len(bucket["results"]) for bucket in page["data"]] == [1, 0, 0, 0, 0, 0, 0, 1, 0, 0]


@pytest.mark.parametrize(
    "change",
    [
        {"limit": 0},
        {"limit": 32},
        {"group_by": ["shoe_size"]},
        {"end_time": 1},
        {"page": "later"},
        {"bucket_width": "1y"},
        {"start_time": "yesterday"},
        {"start_time": 253_402_300_000},
        {"time_zone": "Mars/Base"},
    ],
)
async def test_bad_questions_are_refused(
    http: httpx2.AsyncClient, change: dict[str, object]
) -> None:
    ask = {"start_time": seconds(START)} | change
    answer = await http.get("/v1/organization/usage/completions", params=ask)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


PATHS = (
    "/v1/organization/usage/completions?start_time=0",
    "/v1/organization/costs?start_time=0",
    "/v1/organization/invoices",
    "/v1/organization/invoices/inv_1",
    "/v1/organization/exports/2026-06/events.csv",
)


@pytest.mark.parametrize("path", PATHS)
async def test_anonymous_callers_are_refused(http: httpx2.AsyncClient, path: str) -> None:
    assert (await http.get(path, headers={"authorization": ""})).status_code == 401


async def test_another_tenants_invoice_does_not_exist(
    served: Served, http: httpx2.AsyncClient, acme: Tenant
) -> None:
    database = served.app.state.database
    globex = await TenantService(database, SystemClock()).get("globex")
    clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
    invoices = InvoiceService(database, clock, "Example")
    month = Month(START.year, START.month)
    own, other = [await invoices.finalize(tenant, month) for tenant in (acme, globex)]
    listed = (await http.get("/v1/organization/invoices")).json()["data"]
    assert [entry["id"] for entry in listed] == [own.id]
    assert (await http.get(f"/v1/organization/invoices/{other.id}")).status_code == 404
    answer = await http.get(f"/v1/organization/invoices/{own.id}")
    assert hashlib.sha256(answer.content).hexdigest() == listed[0]["sha256"]
    page = await http.get(f"/v1/organization/invoices/{own.id}?format=html")
    assert own.document["number"] in page.text


async def test_an_export_is_downloaded_in_parts(
    app: FastAPI, http: httpx2.AsyncClient, acme: Tenant
) -> None:
    path = f"/v1/organization/exports/{START:%Y-%m}/events.jsonl"
    whole = (await http.get(path)).content
    assert whole.count(b"\n") >= 1
    rest = await http.get(path, headers={"range": "bytes=10-"})
    assert (rest.status_code, rest.content) == (206, whole[10:])
    same = {"range": "bytes=10-", "if-range": rest.headers["etag"]}
    assert (await http.get(path, headers=same)).status_code == 206
    await post(app.state.database, [facts(acme.id, started_at=START + DAY)])
    other = await http.get(path, headers=same)  # the month goes on: not the same bytes any more
    assert (other.status_code, len(other.content) > len(whole)) == (200, True)
    manifest = (await http.get(path + ".manifest.json")).json()
    assert manifest["sha256"] == hashlib.sha256(other.content).hexdigest()
    beyond = await http.get(path, headers={"range": "bytes=999999999-"})
    size = f"bytes */{len(other.content)}"
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, size)
    assert beyond.json()["error"]["code"] == "range_not_satisfiable"
    for header in ("bytes=nonsense", "bytes=0-1,3-4"):  # not ours to understand
        assert (await http.get(path, headers={"range": header})).content == other.content
    assert (await http.get("/v1/organization/exports/2026-13/events.csv")).status_code == 400
    assert (await http.get("/v1/organization/exports/2026-06/focus.jsonl")).status_code == 400


@pytest.mark.parametrize("file", ["events.csv", "focus.csv"])
async def test_a_manifest_is_of_the_file_that_was_handed_out(
    app: FastAPI, http: httpx2.AsyncClient, acme: Tenant, file: str
) -> None:
    """Also while its month goes on."""
    path = f"/v1/organization/exports/{START:%Y-%m}/{file}"
    for day in (1, 2):
        await post(app.state.database, [facts(acme.id, started_at=START + day * DAY)])
        content = (await http.get(path)).content
        await post(app.state.database, [facts(acme.id, started_at=START + day * DAY)])
        manifest = (await http.get(path + ".manifest.json")).json()
        assert manifest["sha256"] == hashlib.sha256(content).hexdigest()
