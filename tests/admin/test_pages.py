"""The console's pages without a browser: what they show, and what their forms do."""

import re

import httpx2
import pytest
from tests.console_stand import Browser, ConsoleStand
from tests.platform_stand import BASE, Seeded
from tests.usage_stand import facts, post

from loraplex_engine.fake import FakeEngine
from loraplex_engine.messages import Explanation
from loraplex_platform.admission.service import LimitService, Subject
from loraplex_platform.auth.authenticator import Authenticator
from loraplex_platform.config import Settings
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.ids import new_id
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.usage.money import PICO
from loraplex_platform.usage.reconciliation import Drift, Reconciliation
from loraplex_platform.usage.repository import UsageRepository
from loraplex_platform.usage.rollups import sums_of

SECRET = re.compile(r'id="secret">([^<]+)<')


async def asked(stand: ConsoleStand, key: str, times: int = 1) -> list[int]:
    """The statuses of requests with this key."""
    transport = httpx2.ASGITransport(stand.app)
    body = {"model": BASE, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    async with httpx2.AsyncClient(transport=transport, base_url="http://api") as http:
        headers = {"authorization": f"Bearer {key}"}
        return [
            (await http.post("/v1/chat/completions", json=body, headers=headers)).status_code
            for _ in range(times)
        ]


async def change_of(browser: Browser, action: str) -> str:
    """The audit page's row of this action."""
    rows = (await browser.get("/audit")).text.split("<tr>")
    return next(row for row in rows if action in row)


@pytest.fixture
async def owner(stand: ConsoleStand) -> Browser:
    return await stand.signed_in()


@pytest.fixture
async def limited(stand: ConsoleStand) -> str:
    """The page of a limit of acme: one request a minute."""
    limits: LimitService = stand.app.state.limits
    subject = Subject(stand.acme, "tenant", stand.acme)
    await limits.set(subject, "requests_per_minute", 1, strict=False)
    return f"/tenants/{stand.acme}/limits/tenant/{stand.acme}/requests_per_minute"


async def test_limit_is_raised_for_a_day_after_a_look_at_before_and_after(
    stand: ConsoleStand, owner: Browser, limited: str, keys: Seeded
) -> None:
    assert await asked(stand, keys.acme, 3) == [200, 429, 429]
    form = {"value": "100", "span": "24", "reason": "launch"}
    review = (await owner.post(limited, **form)).text
    assert "1 (rule)" in review
    assert "100 for a day" in review
    assert "(rule)" in (await owner.get(limited)).text  # nothing is done yet
    assert (await owner.post(limited, **form, confirmed="yes")).status_code == 303
    shown = (await owner.get(limited)).text
    assert "(override, ends" in shown
    assert "owner@platform" in await change_of(owner, "limit override created")


async def test_override_ends_on_demand_and_the_rule_is_back(owner: Browser, limited: str) -> None:
    await owner.done(limited, value="100", span="1")
    assert (await owner.done(limited + "/lift")).status_code == 303
    assert re.search(r"<dd>1 <small>\(rule\)", (await owner.get(limited)).text)


async def test_value_that_is_no_number_changes_nothing(owner: Browser, limited: str) -> None:
    for value in ("", "-1", "1.5", "x", "9" * 17, "²"):
        answer = await owner.post(limited, value=value, span="24", confirmed="yes")
        assert answer.status_code == 400, value
    assert "(rule)" in (await owner.get(limited)).text


async def test_refused_request_is_explained(
    stand: ConsoleStand, owner: Browser, limited: str, keys: Seeded
) -> None:
    await asked(stand, keys.acme, 3)
    await stand.app.state.rejections.flush()
    page = (await owner.get(f"/refusals?tenant_id={stand.acme}")).text
    assert f'href="/admin{limited}"' in page
    assert "the limit was used up" in page
    refused = re.findall(r"<td[^>]*><a[^>]*>(req_\w+)</a>", page)
    assert len(refused) == 2
    assert limited in (await owner.get(f"/tenants/{stand.acme}")).text
    assert limited in (await owner.get("/")).text


async def test_refused_request_is_found_by_its_id(
    stand: ConsoleStand, owner: Browser, limited: str, keys: Seeded
) -> None:
    await asked(stand, keys.acme, 3)
    await stand.app.state.rejections.flush()
    page = (await owner.get(f"/refusals?tenant_id={stand.acme}")).text
    request_id = re.findall(r"/requests/(req_\w+)", page)[0]
    found = await owner.get(f"/search?q={request_id}")
    assert found.headers["location"] == f"/admin/requests/{request_id}"
    why = (await owner.get(f"/requests/{request_id}")).text
    assert "Turned away with 429: the limit was used up" in why
    assert f'href="/admin{limited}"' in why
    assert re.search(r"<dt>Limit was</dt><dd>1</dd><dt>Used</dt><dd>1</dd>", why)
    assert re.search(r"<td class=.number.>2</td>", why)  # since when, and how often
    theirs = await stand.signed_in("tenant_admin", "globex")
    assert (await theirs.get(f"/requests/{request_id}")).status_code == 404
    for nobody in ("req_1", "req_" + "0" * 32, f"req_{new_id('x', '')[1:]}"):
        assert (await owner.get(f"/requests/{nobody}")).status_code == 404


async def test_request_says_where_its_time_went(stand: ConsoleStand, owner: Browser) -> None:
    now = SystemClock().now()
    slow = facts(
        stand.acme, started_at=now, ended_at=now, queue_s=8.0, ttft_s=9.0, total_s=10.0,
        prompt_tokens=1_200, cached_tokens=200, completion_tokens=30,
    )  # fmt: skip
    lost = facts(stand.acme, started_at=now, ended_at=now, queue_s=None, ttft_s=None, total_s=4.0)
    await post(stand.app.state.database, [slow, lost])
    page = (await owner.get(f"/requests/{slow.request_id}")).text
    stages = re.findall(r'<th scope="row">([^<]+)(.*?)</th><td class="number">([^<]+)', page, re.S)
    assert [(label.strip(), took) for label, _, took in stages] == [
        ("In the queue", "8.0 s"),
        ("Until its first token", "1.0 s"),
        ("Until its last token", "1.0 s"),
    ]
    assert ["longest" in chip for _, chip, _ in stages] == [True, False, False]
    assert "1\u202f000 prompt tokens computed" in page
    assert "ended without a token" in (await owner.get(f"/requests/{lost.request_id}")).text


async def test_request_under_way_says_what_it_waits_for(
    stand: ConsoleStand, owner: Browser, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def explain(request_id: str) -> Explanation:
        tenant = stand.acme if request_id == "req_live.0" else None
        return Explanation(request_id, "waiting", "slot", 3, 1.5, tenant=tenant)

    monkeypatch.setattr(engine, "explain", explain)
    page = (await owner.get("/requests/req_live")).text
    assert "its adapter waits for a place on the device" in page
    assert "<dd>3</dd><dt>Begins in about</dt><dd>1.5 s</dd>" in page
    theirs = await stand.signed_in("tenant_admin", "globex")
    assert (await theirs.get("/requests/req_live")).status_code == 404


async def test_key_is_shown_once_rotated_and_revoked(
    stand: ConsoleStand, owner: Browser, settings: Settings
) -> None:
    path = f"/tenants/{stand.acme}/projects/{stand.project}"
    made = await owner.post(f"{path}/keys", name="ci", expires="90", scope="inference")
    [key] = SECRET.findall(made.text)
    assert await asked(stand, key) == [200]
    assert key not in (await owner.get(path)).text
    page = f"{path}/keys/{key.split('_')[1]}"
    review = await owner.post(f"{page}/rotate", grace="0")
    assert "a new one, shown once" in review.text
    assert await asked(stand, key) == [200]
    rotated = await owner.post(f"{page}/rotate", grace="0", confirmed="yes")
    [new] = SECRET.findall(rotated.text)
    forget_keys(stand, settings)
    assert (await asked(stand, key), await asked(stand, new)) == ([401], [200])
    await owner.done(f"{page}/revoke")
    forget_keys(stand, settings)
    assert await asked(stand, new) == [401]
    assert "revoked_at" in await change_of(owner, "api key updated")


def forget_keys(stand: ConsoleStand, settings: Settings) -> None:
    """As after the second in which running servers remember a key."""
    secrets = Secrets.load_or_create(settings.home)
    state = stand.app.state
    state.authenticator = Authenticator(state.database, secrets, SystemClock())


async def test_tenant_is_made_weighed_suspended_and_resumed(owner: Browser) -> None:
    made = await owner.post("/tenants", name="initech", weight="2")
    path = made.headers["location"].removeprefix("/admin").partition("?")[0]
    page = (await owner.get(path)).text
    assert "2.0 <small>(tenant)" in page
    [revision] = re.findall(r'name="revision" value="(\d+)"', page)
    changed = await owner.done(f"{path}/settings", weight="3.5", revision=revision)
    assert changed.status_code == 303
    stale = await owner.post(f"{path}/settings", weight="4", revision=revision, confirmed="yes")
    assert stale.status_code == 412
    await owner.done(f"{path}/state", state="suspended")
    assert 'chip bad">suspended' in (await owner.get(path)).text
    await owner.done(f"{path}/state", state="active")
    assert "state: " in await change_of(owner, "tenant updated")


async def test_requests_are_filtered_and_walked_page_by_page(
    stand: ConsoleStand, owner: Browser
) -> None:
    now = SystemClock().now()
    events = [facts(stand.acme, started_at=now, ended_at=now) for _ in range(60)]
    events += [facts(stand.globex, started_at=now, ended_at=now, tier="batch")]
    async with stand.app.state.database.unit_of_work() as session:
        usage = UsageRepository(session)
        await usage.add_up(sums_of(await usage.add_new(events)))
    path, seen = f"/requests?tenant_id={stand.acme}", set()
    while path:
        page = (await owner.get(path)).text
        seen |= set(re.findall(r"/requests/(req_\d+)", page))
        [*_, following] = ["", *re.findall(r'href="/admin(/requests\?[^"]*after=[^"]+)"', page)]
        path = following.replace("&amp;", "&")
    assert seen == {event.request_id for event in events[:60]}
    batch = (await owner.get("/requests?tier=batch")).text
    assert re.findall(r"/requests/(req_\d+)", batch) == [events[60].request_id]
    overview = (await owner.get("/live")).text
    assert "<b>61</b>" in overview
    assert "globex" in overview


async def test_search_finds_tenants_keys_and_requests(
    stand: ConsoleStand, owner: Browser, keys: Seeded
) -> None:
    key_id = keys.acme.split("_")[1]
    assert f"/tenants/{stand.acme}" in (await owner.get("/search?q=acm")).headers["location"]
    assert key_id in (await owner.get(f"/search?q={key_id}")).headers["location"]
    assert key_id in (await owner.get(f"/search?q=lpx_{key_id}_x")).headers["location"]
    for id, path in (("req_1", "/requests/req_1"), ("batch_1", "/batches/batch_1")):
        assert (await owner.get(f"/search?q={id}")).headers["location"] == f"/admin{path}"
    assert "Nothing is called" in (await owner.get("/search?q=zzz")).text


async def test_person_is_invited_sets_a_password_and_is_disabled(
    stand: ConsoleStand, owner: Browser
) -> None:
    shown = await owner.post("/people", email="new@example.com", role="viewer", name="New")
    [link] = SECRET.findall(shown.text)
    assert link.startswith("http://localhost/admin/link#lpxlink_")
    theirs = await stand.anonymous()
    form = {"token": link, "password": "a fine password", "again": "a fine password"}
    headers = {"origin": "http://localhost"}
    for location in ("/admin/sign-in?done=password", None):  # the second time it is used up
        answer = await theirs.http.post("/admin/link", data=form, headers=headers)
        assert answer.headers.get("location") == location
    credentials = {"email": "new@example.com", "password": "a fine password"}
    answer = await theirs.http.post("/admin/sign-in", data=credentials, headers=headers)
    assert answer.status_code == 303
    assert (await theirs.get("/")).status_code == 200
    page = (await owner.get("/settings")).text
    [person] = re.findall(r"/people/(per_\w+)/reset", page.partition("new@example.com")[2])
    await owner.done(f"/people/{person}", action="disable")
    assert (await theirs.get("/")).headers["location"] == "/admin/sign-in"


async def test_overview_says_which_books_disagree(stand: ConsoleStand, owner: Browser) -> None:
    books: Reconciliation = stand.app.state.overview._books
    books.alarms = [Drift("engine", stand.acme, -3_000), Drift("money", stand.globex, 5 * PICO)]
    page = re.sub(r"<[^>]+>", "", (await owner.get("/live")).text)
    assert "acme disagree: events have 3\u202f000 completion tokens more than engines" in page
    assert "globex disagree: roll-ups at their prices have $5.00 more than the ledger" in page
    theirs = await stand.signed_in("tenant_admin", "acme")
    assert "disagree" not in (await theirs.get("/live")).text


async def test_overview_says_when_the_engine_is_silent(stand: ConsoleStand, owner: Browser) -> None:
    await stand.app.state.engine.close()
    page = (await owner.get("/live")).text
    assert "The engine is silent" in page
    assert "away" in (await owner.get("/settings")).text
