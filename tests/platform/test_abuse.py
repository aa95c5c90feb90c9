"""What attackers try: guessing keys, injecting through them, spoofing, reading what is left lying."""

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx2
import pytest
import structlog
from fastapi import FastAPI
from starlette.requests import Request
from tests.admin_stand import PROJECT, AdminStand, admin_stand
from tests.calls import calling
from tests.platform_stand import BASE, Seeded, Served, content_of

from loraplex_platform.auth.keys import new_key
from loraplex_platform.kit.principal import COMMAND_LINE
from loraplex_platform.observability.logging import configure_logging
from loraplex_platform.tenants.service import TenantService

PROMPT = "the-prompt-nobody-may-store"
PROBES = (
    "' OR 1=1 --",
    "lpx_' OR 1=1 --_x",
    "lpx_0123456789abcdef_" + "a" * 42,
    "lpx_0123456789abcdef_" + "a" * 44,
    "lpx_0123456789abcde%_" + "a" * 43,
    "LPX_0123456789abcdef_" + "a" * 43,
    "lpx_" + "a" * 30_000,
    "lpxadmin_0123456789abcdef_" + "a" * 43,
    "",
)
NAMED = ("/v1/models", "/v1/files", "/v1/adapters")  # where a name follows
MakeApp = Callable[..., FastAPI]


@pytest.fixture
async def http(app: FastAPI, keys: Seeded) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def models(http: httpx2.AsyncClient, key: str, **headers: str) -> httpx2.Response:
    renamed = {name.replace("_", "-"): value for name, value in headers.items()}
    return await http.get("/v1/models", headers={"authorization": f"Bearer {key}"} | renamed)


@pytest.mark.parametrize("probe", PROBES, ids=range(len(PROBES)))
async def test_probe_is_an_unknown_key_and_never_echoed(
    http: httpx2.AsyncClient, probe: str
) -> None:
    answer = await models(http, probe)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert not probe or probe not in answer.text


async def test_ten_thousand_bad_keys_cost_twenty_reads(
    http: httpx2.AsyncClient, app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0
    reading = app.state.database.reading

    def counted() -> object:
        nonlocal reads
        reads += 1
        return reading()

    monkeypatch.setattr(app.state.database, "reading", counted)
    authenticator, counts = app.state.authenticator, {"401": 0, "429": 0}
    for _ in range(10_000):
        try:
            await authenticator.authenticate(str(new_key()), "192.0.2.1")
        except Exception as error:
            counts["429" if type(error).__name__ == "RateLimited" else "401"] += 1
    assert reads == counts["401"] <= 25  # twenty at once, then one in three seconds
    answer = await models(http, str(new_key()))
    assert answer.status_code == 401, "another address pays for it"


async def test_throttled_address_is_told_when_to_come_back(http: httpx2.AsyncClient) -> None:
    answers = [await models(http, str(new_key())) for _ in range(25)]
    assert [a.status_code for a in answers] == [401] * 20 + [429] * 5
    assert answers[-1].json()["error"]["code"] == "too_many_failures"
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 3


async def test_near_and_far_secrets_are_refused_alike(app: FastAPI, keys: Seeded) -> None:
    authenticator = app.state.authenticator
    good_id = keys.acme.split("_")[1]
    await authenticator.authenticate(keys.acme)

    async def refused(key: str) -> list[str]:
        address = new_key().id  # its own each time
        with pytest.raises(Exception, match="Incorrect API key"), calling() as calls:
            await authenticator.authenticate(key, address)
        return calls

    secret = keys.acme.split("_")[2]
    near = f"lpx_{good_id}_{secret[:-1]}{'a' if secret[-1] != 'a' else 'b'}"
    far = str(new_key()._replace(id=good_id))
    await refused(near)
    steps = await refused(near)
    assert steps == await refused(far)
    assert "compare_digest" in steps


async def test_forwarded_address_counts_only_from_a_trusted_proxy(make_app: MakeApp) -> None:
    async def seen(**change: object) -> str:
        app = make_app(**change)

        @app.get("/address")
        async def address(request: Request) -> str:
            return str(request.state.address)

        transport = httpx2.ASGITransport(app, client=("10.0.0.1", 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            return (await client.get("/address", headers={"x-forwarded-for": "192.0.2.7"})).text

    assert await seen() == '"10.0.0.1"'
    assert await seen(trusted_proxies=("10.0.0.0/8",)) == '"192.0.2.7"'


async def test_internal_headers_of_a_client_are_dropped(app: FastAPI, keys: Seeded) -> None:
    @app.get("/headers")
    async def headers(request: Request) -> list[str]:
        return sorted(request.headers)

    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        given = {"x-loraplex-tenant": "globex", "X-Loraplex-Tier": "interactive"}
        seen = (await client.get("/headers", headers=given)).json()
    assert not [name for name in seen if name.startswith("x-loraplex")]


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """What a server would log, all of it."""
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    before = structlog.get_config()
    configure_logging("debug")
    stream = io.StringIO()
    handler = logging.getLogger().handlers[0]
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(stream)
    yield stream
    structlog.configure(**before)
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)


def test_control_characters_make_no_line_of_their_own_in_the_log(logged: io.StringIO) -> None:
    structlog.get_logger().warning("named", name='a\n{"level": "error"}\x1b[31m\x7f')
    logging.getLogger("uvicorn").error("no such path: %s", "a\r\nb")
    named, told = (json.loads(line) for line in logged.getvalue().splitlines())
    assert (named["name"], named["level"]) == ('a{"level": "error"}[31m', "warning")
    assert told["event"] == "no such path: ab"


async def test_planted_secrets_and_prompts_are_nowhere(
    logged: io.StringIO, served: Served, tmp_path: Path
) -> None:
    async with admin_stand(served.app) as stand:
        secrets, texts = await _a_busy_day(stand, served)
    await served.app.state.inference.tasks.drain()
    await served.app.state.authenticator.uses.flush()
    content = await content_of(served.app.state.database)
    assert "planted" not in content
    assert "a@b" in content, "the database is not the one that was used"
    haystack = logged.getvalue() + "".join(texts) + _files_in(tmp_path) + content
    assert len(haystack) > 50_000
    assert [s for s in (*secrets, PROMPT) if s in haystack] == []


async def test_key_where_no_key_belongs_is_neither_taken_nor_told(
    logged: io.StringIO, http: httpx2.AsyncClient, keys: Seeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("httpx2"), "disabled", True)  # the client's own words
    key, auth = keys.acme, {"authorization": f"Bearer {keys.acme}"}
    chat = {"messages": [{"role": "user", "content": "hi"}], "model": BASE}
    anonymous = [
        await http.get("/v1/models", params={"api_key": key}),
        await http.get("/v1/models", headers={"cookie": f"api_key={key}"}),
    ]
    told = [await http.get(f"{path}/{key}", headers=auth) for path in ("", *NAMED)]
    told += [
        await http.post("/v1/chat/completions", json=body, headers=auth)
        for body in (chat | {"model": key}, chat | {key: 1})
    ]
    assert [answer.status_code for answer in anonymous] == [401, 401]
    assert {answer.status_code for answer in told} == {404, 400}
    assert all("lpx_…" in answer.text for answer in told)
    log = logged.getvalue()
    assert log.count('"path": "/v1/files/lpx_') == 1
    assert key.rpartition("_")[2] not in log + "".join(answer.text for answer in told)


def _files_in(home: Path) -> str:
    """The database with its log, files and folders, but not the one file that holds the secret."""
    files = [f for f in home.rglob("*") if f.is_file() and f.name != "secret.key"]
    return "".join(f.read_bytes().decode("latin-1") for f in files)


async def _a_busy_day(stand: AdminStand, served: Served) -> tuple[list[str], list[str]]:
    """Everything that sees a secret is used once; the secrets, and what was shown elsewhere."""
    made = await stand.call("POST", PROJECT + "/keys", {"name": "n"}, idempotency_key="x")
    key = made.json()
    rotated = await stand.call("POST", f"{PROJECT}/keys/{key['id']}/rotate", {})
    invited = await stand.made("/people", {"email": "a@b", "role": "viewer"})
    await served.app.state.people.redeem(invited["token"], "a planted password")
    token = await served.app.state.sessions.open("a@b", "a planted password")
    with pytest.raises(Exception, match="wrong"):
        await served.app.state.sessions.open("a@b", "another planted password")
    client = served.client(rotated.json()["value"])
    await client.chat.completions.create(
        model=BASE, messages=[{"role": "user", "content": PROMPT}], max_tokens=2
    )
    paths = ("/audit_events?limit=100", f"{PROJECT}/keys", "/people", "/admin_keys")
    texts = [(await stand.call("GET", path)).text for path in paths]
    wrong = await models(stand.http, key["value"] + "x")
    metrics = await stand.http.get("/metrics")
    plain = [key["value"], rotated.json()["value"], *stand.keys.values(), served.keys.acme]
    secrets = [text.rpartition("_")[2] for text in (*plain, invited["token"])]
    planted = ["a planted password", "another planted password", token]
    return secrets + planted, [*texts, wrong.text, metrics.text]


async def test_suspended_tenants_key_stops_within_the_bound_everywhere(
    make_app: MakeApp, keys: Seeded
) -> None:
    apps = [make_app(), make_app()]
    for app in apps:
        await app.state.authenticator.authenticate(keys.acme)
    tenants = TenantService(apps[0].state.database, apps[0].state.keys._clock)
    await tenants.move(COMMAND_LINE, (await tenants.get("acme")).id, "suspended")
    await asyncio.sleep(1.05)
    for app in apps:
        with pytest.raises(Exception, match="suspended"):
            await app.state.authenticator.authenticate(keys.acme)
