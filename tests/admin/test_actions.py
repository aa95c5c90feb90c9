"""What the console's forms do to plans, webhooks, adapters, batches and bills, and who did it."""

import asyncio
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fastapi import FastAPI
from tests.adapter_stand import CONFIG_BYTES, weights_of, zip_of
from tests.admin.test_pages import SECRET, change_of
from tests.console_places import Places, furnish
from tests.console_stand import Browser, ConsoleStand, console_stand
from tests.platform_stand import Seeded
from tests.usage_stand import facts, post

from loraplex_adapters.report import LoadReport
from loraplex_admin.app import mount_console
from loraplex_platform.audit.trail import changing
from loraplex_platform.auth.service import KeyService
from loraplex_platform.batches.models import Batch
from loraplex_platform.batches.repository import BatchRepository
from loraplex_platform.batches.service import COUNTERS
from loraplex_platform.catalogue.models import AdapterName
from loraplex_platform.catalogue.publishing import publish
from loraplex_platform.catalogue.service import CatalogueService
from loraplex_platform.kit.clock import ManualClock, SystemClock
from loraplex_platform.kit.principal import COMMAND_LINE, Principal
from loraplex_platform.usage.invoice_service import InvoiceService, Month

ROW = re.compile(r"<tr>.*?</tr>", re.S)


@pytest.fixture
async def owner(stand: ConsoleStand) -> Browser:
    return await stand.signed_in()


@pytest.fixture
async def places(stand: ConsoleStand, keys: Seeded) -> Places:
    return await furnish(stand, keys.acme.split("_")[1])


def following(page: str, path: str) -> str:
    """Where the next page is; nowhere after the last."""
    [*_, link] = ["", *re.findall(rf'href="/admin({path}\?[^"]*after=[^"]+)">Next', page)]
    return link.replace("&amp;", "&")


def place_of(location: str) -> str:
    """A redirect's path inside the console."""
    return location.removeprefix("/admin").partition("?")[0]


def first_cells(page: str) -> list[str]:
    """The text of each row's heading."""
    cells = re.findall(r'<th scope="row"[^>]*>(.*?)</th>', page, re.S)
    return [re.sub(r"<[^>]+>", "", cell).strip() for cell in cells]


async def test_plan_is_made_changed_given_to_a_tenant_and_removed(
    stand: ConsoleStand, owner: Browser
) -> None:
    form = {"name": "gold", "weight": "3", "max_tier": "interactive", "requests_per_minute": "60"}
    made = await owner.post("/settings/plans", **form)
    path = place_of(made.headers["location"])
    plan_id = path.rpartition("/")[2]
    review = await owner.post(path, **form | {"requests_per_minute": "90", "revision": "1"})
    assert re.search(r"Requests per minute.*>60<.*<strong>90<", review.text, re.S)
    await owner.done(path, **form | {"requests_per_minute": "90", "revision": "1"})
    stale = await owner.post(path, **form, revision="1", confirmed="yes")
    assert stale.status_code == 412
    tenant = f"/tenants/{stand.acme}"
    given = await owner.post(f"{tenant}/settings", plan_id=plan_id, revision="1")
    assert "<strong>gold</strong>" in given.text  # by its name, not its id
    await owner.done(f"{tenant}/settings", plan_id=plan_id, revision="1")
    limits = (await owner.get(f"{tenant}/limits")).text
    assert re.search(r'class="number">90<.*?>plan<', limits, re.S)
    assert "acme" in (await owner.get(f"/tenants?plan_id={plan_id}")).text
    assert (await owner.done(f"{path}/remove")).status_code == 409  # somebody is on it
    await owner.done(f"{tenant}/settings", revision="2")
    assert (await owner.done(f"{path}/remove")).status_code == 303
    assert "owner@platform" in await change_of(owner, "plan deleted")


async def test_webhook_is_made_tested_replayed_switched_off_and_removed(
    stand: ConsoleStand, owner: Browser
) -> None:
    form = {"url": "https://example.com/hook", "events": "batch.completed, webhook.test"}
    made = await owner.post(f"/tenants/{stand.acme}/webhooks", **form)
    [secret] = SECRET.findall(made.text)
    assert secret.startswith("whsec_")
    [path] = re.findall(r'class="button" href="/admin([^"]+)"', made.text)
    assert (await owner.post(f"{path}/test")).status_code == 303
    page = (await owner.get(path)).text
    [replay] = re.findall(r'action="/admin([^"]+/replay)"', page)
    assert "webhook.test" in page
    assert secret not in page
    assert (await owner.post(replay)).status_code == 303
    assert "owner@platform" in await change_of(owner, "webhook replayed")
    await owner.done(path, action="off")
    assert ">off<" in (await owner.get("/settings/webhooks")).text
    await owner.done(path, action="remove")
    assert (await owner.get(path)).status_code == 404
    for url in ("ftp://example.com", "https://a b", "https://user:pw@example.com/", "x"):
        refused = await owner.post(f"/tenants/{stand.acme}/webhooks", url=url)
        assert refused.status_code == 400, url


async def test_adapter_gets_a_canary_a_new_version_and_goes_back(
    stand: ConsoleStand, owner: Browser
) -> None:
    catalogue: CatalogueService = stand.app.state.adapters.catalogue
    await publish_second(stand)
    path = f"/tenants/{stand.acme}/adapters/support"

    async def answers() -> tuple[int, int | None, bool]:
        entry = await catalogue.get(Principal(stand.acme, "", ""), "support")
        return entry.name.current, entry.name.canary, entry.name.is_enabled

    await owner.done(path, action="canary", number="2", percent="10")
    assert await answers() == (1, 2, True)
    await owner.done(path, action="rollback")
    assert await answers() == (1, None, True)
    await owner.done(path, action="point", number="2")
    assert await answers() == (2, None, True)
    await owner.done(path, action="rollback")
    await owner.done(path, action="disable")
    assert await answers() == (1, None, False)
    for form in ({"action": "canary", "number": "2", "percent": "101"}, {"action": "x"}):
        assert (await owner.post(path, **form)).status_code == 400
    assert "is_enabled: " in await change_of(owner, "adapter name updated")
    page = (await owner.get(f"{path}?version=2")).text
    assert "Load report of version 2" in page


CONFIG, WEIGHTS = ("<img src=x>.json", CONFIG_BYTES), ("../\u202ew", weights_of())
NONE_CHOSEN = ("", b"")  # what a browser sends of an empty field


async def test_adapter_is_uploaded_and_another_version_waits(
    stand: ConsoleStand, owner: Browser
) -> None:
    theirs = await stand.signed_in("tenant_admin", "acme")
    form = {"tenant_id": stand.acme, "name": "team/poet", "archive": NONE_CHOSEN}
    made = await theirs.post("/adapters", **form, config=CONFIG, weights=WEIGHTS)
    path = f"/tenants/{stand.acme}/adapters/team/poet"
    assert place_of(made.headers["location"]) == path
    packed = zip_of(
        {"adapter_config.json": CONFIG_BYTES, "adapter_model.safetensors": weights_of(1)}
    )
    empty = {"config": NONE_CHOSEN, "weights": NONE_CHOSEN}
    await owner.post("/adapters", **form | empty | {"archive": ("a.zip", packed)})
    page = (await owner.get(path)).text
    assert "version 1 answers" in page
    assert "Make current… version 2" in page
    assert "tenant_admin@acme" in await change_of(owner, "adapter name created")


async def test_upload_that_is_no_adapter_or_for_another_tenant_is_refused(
    stand: ConsoleStand, owner: Browser
) -> None:
    theirs = await stand.signed_in("tenant_admin", "globex")
    form = {"tenant_id": stand.acme, "name": "poet", "config": CONFIG, "weights": WEIGHTS}
    assert (await theirs.post("/adapters", **form)).status_code == 404
    for name, value in (
        ("config", ("c", b"{}")),
        ("weights", ("w", b"pickle")),
        ("weights", NONE_CHOSEN),
        ("name", "../poet"),
        ("name", ""),
    ):
        assert (await owner.post("/adapters", **form | {name: value})).status_code == 400, value
    assert "poet" not in (await owner.get(f"/tenants/{stand.acme}/adapters")).text


async def test_another_file_in_the_same_form_is_another_upload(
    stand: ConsoleStand, owner: Browser
) -> None:
    form = {"tenant_id": stand.acme, "name": "poet", "config": CONFIG, "once": "form_1"}
    places = [
        (await owner.post("/adapters", **form, weights=("w", weights_of(seed)))).headers["location"]
        for seed in (0, 0, 1)
    ]
    assert [place.partition("version=")[2][0] for place in places] == ["1", "1", "2"]


async def test_upload_may_be_larger_than_other_forms(
    make_app: Callable[..., FastAPI], base: Path, seeded: tuple[Path, Seeded]
) -> None:
    small = make_app(model=str(base), max_body_bytes=1_000)
    mount_console(small)
    sessions = json.loads((seeded[0] / "sessions.json").read_text())
    async with console_stand(small, sessions) as stand:
        owner = await stand.signed_in()
        assert len(WEIGHTS[1]) > 1_000
        form = {"tenant_id": stand.acme, "name": "poet", "config": CONFIG, "weights": WEIGHTS}
        assert (await owner.post("/adapters", **form)).status_code == 303
        assert (await owner.post("/tenants", name="x" * 1_001)).status_code == 413


async def test_who_has_an_adapter_loaded_is_in_the_log(stand: ConsoleStand, owner: Browser) -> None:
    await stand.app.state.engine.start()
    path = f"/tenants/{stand.acme}/adapters/support"
    assert (await owner.post(path, action="preload")).status_code == 303
    await stand.app.state.engine.close()
    assert "owner@platform" in await change_of(owner, "adapter preloaded")


async def publish_second(stand: ConsoleStand) -> None:
    """A second version of acme's `support`, which nobody is sent to."""
    report = LoadReport(None, rank=16, num_bytes=2, modules=(), unadapted=(), warnings=())
    clock = SystemClock()
    async with changing(stand.app.state.database, COMMAND_LINE.actor, clock) as session:
        await publish(
            session, Principal(stand.acme, "", ""), "support", "second", report,
            now=clock.now(), activate=False,
        )  # fmt: skip


async def test_batch_is_paused_and_goes_on(owner: Browser, places: Places) -> None:
    path = f"/batches/{places['batch_id']}"
    assert "Resume…" in (await owner.get(path)).text
    await owner.done(path, action="resume")
    assert "Pause…" in (await owner.get(path)).text
    await owner.done(path, action="pause")
    assert "owner@platform" in await change_of(owner, "batch paused")
    assert "10 / 40" in (await owner.get("/batches?tenant_id=acme")).text


async def test_batch_is_cancelled_by_its_tenant_once(
    stand: ConsoleStand, owner: Browser, places: Places
) -> None:
    path = f"/batches/{places['batch_id']}"
    theirs = await stand.signed_in("tenant_admin", "acme")
    review = await theirs.post(f"{path}/cancel")
    assert "Its 10 finished lines stay" in review.text
    assert "Resume" not in (await theirs.get(path)).text  # that is the staff's
    assert "Resume…" in (await owner.get(path)).text  # nothing is done yet
    await theirs.done(f"{path}/cancel")
    page = (await owner.get(path)).text
    assert ">cancelling<" in page
    assert "Cancel…" not in page
    await owner.done(f"{path}/cancel")  # changes nothing
    assert "tenant_admin@acme" in await change_of(owner, "batch cancelled")
    assert (await owner.get("/audit?object_type=batch")).text.count("batch cancelled") == 1


async def test_budget_and_credit_are_set_after_a_look(stand: ConsoleStand, owner: Browser) -> None:
    path = f"/tenants/{stand.acme}/bills"
    await owner.done(f"{path}/budgets", span="month", amount="25.50", kind="hard")
    page = (await owner.get(path)).text
    assert "$25.50" in page
    assert "$25.50" in (await owner.get(f"/tenants/{stand.acme}/limits")).text  # it binds
    review = await owner.post(f"{path}/budgets", span="month", amount="", kind="hard")
    assert "$25.50, hard" in review.text
    await owner.done(f"{path}/budgets", span="month", amount="", kind="hard")
    assert "No budget" in (await owner.get(path)).text
    grant = {"amount": "10", "key": "welcome", "funding": "promotion", "expires": "30"}
    await owner.done(f"{path}/credits", **grant)
    assert "$10.00" in (await owner.get(path)).text
    for amount in ("-1", "x", "1e400", "0.0000000000001"):
        refused = await owner.post(f"{path}/credits", **grant | {"amount": amount})
        assert refused.status_code == 400, amount
    assert "owner@platform" in await change_of(owner, "credit grant created")


async def test_month_becomes_an_invoice_that_is_paid_and_another_void(
    stand: ConsoleStand, owner: Browser
) -> None:
    first = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    used_at = first - timedelta(days=3)
    events = [facts(stand.acme, started_at=used_at, prompt_tokens=10**7, cached_tokens=0)]
    await post(stand.app.state.database, events)
    path, month = f"/tenants/{stand.acme}/bills", f"{used_at:%Y-%m}"
    draft = (await owner.get(f"{path}/drafts/{month}")).text
    assert "Input tokens" in draft
    made = await owner.done(f"{path}/invoices", month=month)
    if datetime.now(UTC) < first + timedelta(hours=1):
        assert made.status_code == 400  # the month's last requests may still come in
        return
    invoice = place_of(made.headers["location"])
    await owner.done(invoice, state="void")
    made = await owner.done(f"{path}/invoices", month=month)
    invoice = place_of(made.headers["location"])
    await owner.done(invoice, state="paid")
    assert ">paid<" in (await owner.get(invoice)).text
    document = await owner.get(f"{invoice}/document.json")
    assert document.json()["number"] == "INV-000003"  # a credit note lies between
    assert "owner@platform" in await change_of(owner, "invoice created")


async def test_part_of_an_invoice_is_credited_after_a_look(
    stand: ConsoleStand, owner: Browser
) -> None:
    database, june = stand.app.state.database, datetime(2026, 6, 9, tzinfo=UTC)
    much = {"prompt_tokens": 10**8, "cached_tokens": 10**7, "completion_tokens": 10**7}
    await post(database, [facts(stand.acme, started_at=june, **much)])
    tenant = await stand.app.state.tenants.get("acme")
    later = InvoiceService(database, ManualClock(datetime(2030, 1, 1, tzinfo=UTC)), "Example")
    row = await later.finalize(tenant, Month(2026, 6))
    invoice = f"/tenants/{stand.acme}/bills/invoices/{row.id}"
    part = {"line": "1", "amount": "0.01", "reason": "late answers"}
    assert "line 1" in (await owner.post(f"{invoice}/credit", **part)).text
    made = await owner.done(f"{invoice}/credit", **part)
    note = (await owner.get(place_of(made.headers["location"]))).text
    assert "Credit note INV-000002" in note
    assert "Credit a part" not in note
    for wrong in ({"amount": "0.001"}, {"amount": "99999"}, {"line": "x"}, {"line": "99"}):
        answer = await owner.post(f"{invoice}/credit", **part | wrong, confirmed="yes")
        assert answer.status_code == 400, wrong
    assert "Credit a part" in (await owner.get(invoice)).text
    assert "owner@platform" in await change_of(owner, "invoice created")


async def test_role_is_changed_after_a_look_and_ends_the_sessions(
    stand: ConsoleStand, owner: Browser
) -> None:
    viewer = await stand.signed_in("viewer")
    assert (await viewer.get("/")).status_code == 200
    settings = (await owner.get("/settings")).text
    row = next(row for row in ROW.findall(settings) if "viewer@platform" in row)
    [person] = set(re.findall(r"/people/(per_\w+)", row))
    review = await owner.post(f"/people/{person}", action="role", role="operator")
    assert "operator, signed out everywhere" in review.text
    await owner.done(f"/people/{person}", action="role", role="operator")
    assert (await viewer.get("/")).status_code == 303
    assert "role: " in await change_of(owner, "person updated")


async def test_key_form_that_is_sent_twice_makes_one_key(
    stand: ConsoleStand, owner: Browser
) -> None:
    keys: KeyService = stand.app.state.keys
    path = f"/tenants/{stand.acme}/projects/{stand.project}/keys"
    form = {"name": "ci", "expires": "90", "scope": "inference", "once": "form_1"}
    await owner.token()
    before = len(await keys.of_tenant(stand.acme))
    answers = await asyncio.gather(*(owner.post(path, **form) for _ in range(3)))
    answers.append(await owner.post(path, **form))  # a reload
    assert len({SECRET.findall(answer.text)[0] for answer in answers}) == 1
    assert len(await keys.of_tenant(stand.acme)) == before + 1
    another = await owner.post(path, **form | {"once": "form_2"})
    assert SECRET.findall(another.text) != SECRET.findall(answers[0].text)


async def test_form_that_failed_may_be_sent_again(stand: ConsoleStand, owner: Browser) -> None:
    form = {"name": "Not A Name", "once": "form_1"}
    for _ in range(2):
        assert (await owner.post("/tenants", **form)).status_code == 400
    assert (await owner.post("/tenants", **form | {"name": "initech"})).status_code == 303


async def test_answer_to_a_form_belongs_to_its_session(stand: ConsoleStand, owner: Browser) -> None:
    path = f"/tenants/{stand.acme}/projects/{stand.project}/keys"
    form = {"name": "ci", "expires": "90", "scope": "inference", "once": "form_1"}
    theirs = await stand.signed_in("tenant_admin", "acme")
    [mine] = SECRET.findall((await owner.post(path, **form)).text)
    [other] = SECRET.findall((await theirs.post(path, **form)).text)
    assert mine != other


async def test_tables_are_sorted_and_filtered_by_their_address(
    stand: ConsoleStand, owner: Browser
) -> None:
    for name in ("zeta", "beta"):
        await owner.post("/tenants", name=name)
    assert first_cells((await owner.get("/tenants?sort=name")).text) == sorted(
        ["acme", "globex", "zeta", "beta"]
    )
    page = (await owner.get("/tenants?sort=-name")).text
    assert first_cells(page)[0] == "zeta"
    assert 'aria-sort="descending"' in page
    assert first_cells((await owner.get("/tenants?sort=nonsense")).text)[0] == "acme"
    assert first_cells((await owner.get("/tenants?state=suspended")).text) == []
    now = SystemClock().now()
    names = (f"a{number:03}" for number in range(101))  # more than a page
    async with changing(stand.app.state.database, COMMAND_LINE, SystemClock()) as session:
        session.add_all(
            AdapterName(tenant_id=stand.acme, name=name, current=1, last_number=1, is_enabled=True,
                        is_pinned=False, defaults={}, created_at=now, updated_at=now)
            for name in names
        )  # fmt: skip
    adapters = (await owner.get(f"/tenants/{stand.acme}/adapters?sort=-name")).text
    assert first_cells(adapters)[:2] == ["support", "acme-only"]


async def test_slowest_requests_come_first_wherever_they_are(
    stand: ConsoleStand, owner: Browser
) -> None:
    now = SystemClock().now()
    events = [
        facts(
            stand.acme, started_at=now - timedelta(minutes=n), ended_at=now, total_s=float(n % 97)
        )
        for n in range(120)
    ]
    await post(stand.app.state.database, events)
    slowest = sorted(events, key=lambda event: (event.total_s, event.request_id), reverse=True)
    path, seen = "/requests?sort=-total", []
    while path:
        page = (await owner.get(path)).text
        seen += re.findall(r"/requests/(req_\d+)", page)
        path = following(page, "/requests")
    assert seen == [event.request_id for event in slowest]
    assert "Looked through: the newest 20\u202f000" in page


async def test_batches_are_filtered_and_sorted(stand: ConsoleStand, owner: Browser) -> None:
    async with stand.app.state.database.unit_of_work() as session:
        for number in range(60):
            status = "failed" if number == 0 else "completed"
            await BatchRepository(session).add(old_batch(stand, number, status))
    newest = first_cells((await owner.get("/batches")).text)
    assert newest[:2] == ["…000000000059", "…000000000058"]
    longest = (await owner.get("/batches?sort=lines")).text
    assert first_cells(longest)[0] == "…000000000059"  # 60 - 59 lines
    rest = (await owner.get(following(longest, "/batches"))).text
    assert first_cells(rest)[-1] == "…000000000000"
    assert first_cells((await owner.get("/batches?status=failed")).text) == ["…000000000000"]
    assert "No job is in this state" in (await owner.get("/batches?status=expired")).text


def old_batch(stand: ConsoleStand, number: int, status: str) -> Batch:
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=number)
    return Batch(
        id=f"batch_0000000000{number:02}", tenant_id=stand.acme, project_id=stand.project, key_id="k",
        rights={}, status=status, endpoint="/v1/completions", completion_window="24h",
        input_file_id="file", priority=0, created_at=at, expires_at=at,
        **dict.fromkeys(COUNTERS, 0) | {"total": 60 - number},
    )  # fmt: skip


async def test_sorted_tenants_are_walked_page_by_page(stand: ConsoleStand, owner: Browser) -> None:
    for number in range(60):
        await stand.app.state.tenants.create(f"t{(number * 37) % 60:02}")
    for order in ("name", "-name", "since", "-since"):
        path, seen = f"/tenants?sort={order}", []
        while path:
            page = (await owner.get(path)).text
            seen += first_cells(page)
            path = following(page, "/tenants")
        assert len(seen) == len(set(seen)) == 62, order
        if order.endswith("name"):
            assert seen == sorted(seen, reverse=order.startswith("-"))
