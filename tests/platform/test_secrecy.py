"""The watch that every test stands under sees what it should."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import structlog
from fastapi import FastAPI, Response
from tests.platform_stand import BASE, Served
from tests.secrecy import Watch

from loraplex_platform.auth.keys import new_key
from loraplex_platform.middleware import RequestContext
from loraplex_platform.people.passwords import Passwords
from loraplex_platform.webhooks.signing import new_secret

ROOT = Path(__file__).parents[2]
PACKAGES = ("platform", "engine", "kernels", "adapters", "admin")
FOREIGN = "lpxadmin_0123456789abcdef_" + "a" * 43


@pytest.fixture
def told(watch: Watch) -> Iterator[Watch]:
    """What is leaked here is leaked on purpose."""
    yield watch
    watch.clear()


def places(watch: Watch) -> list[str]:
    return [leak.split(": ")[0] for leak in watch.leaks()]


def test_a_key_in_a_log_is_found_by_its_secret_and_by_its_form(told: Watch) -> None:
    key, log = new_key(), structlog.get_logger()
    log.info("request", key=key.id)
    assert told.leaks() == []
    log.info("request", secret=key.secret)
    log.info("request", key=FOREIGN)
    logging.getLogger("uvicorn").error("no such path: %s", FOREIGN)
    assert places(told) == ["log"] * 3


async def test_passwords_and_the_secrets_of_webhooks_are_known(told: Watch) -> None:
    passwords, secret = Passwords(), new_secret()
    stored = await passwords.hash("a good password")
    assert not await passwords.matches("a wrong password", stored)
    assert {"a good password", "a wrong password", secret.removeprefix("whsec_")} == told.made


async def test_answers_show_a_secret_to_whoever_makes_it_and_to_nobody_else(told: Watch) -> None:
    app, secret = FastAPI(), new_key().secret
    app.add_middleware(RequestContext, max_body_bytes=100)

    @app.api_route("/{status}", methods=["GET", "POST", "PATCH"])
    async def answer(status: int) -> Response:
        return Response(secret, status, headers={"set-cookie": secret})

    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
        for method, status in (("POST", 201), ("POST", 422), ("PATCH", 200), ("GET", 200)):
            await http.request(method, f"/{status}")
    assert places(told) == ["POST /422", "PATCH /200", "GET /200"]


def test_the_database_is_searched(told: Watch, tmp_path: Path) -> None:
    (tmp_path / "loraplex.sqlite3-wal").write_bytes(b"\0" + FOREIGN.encode() + b"\0")
    told.show_files(tmp_path)
    told.show_rows({"api_key": FOREIGN.encode()})
    assert places(told) == ["loraplex.sqlite3-wal", "table api_key"]


def test_what_one_test_makes_is_sought_in_what_all_the_others_show(tmp_path: Path) -> None:
    watch = Watch(tmp_path / "a.shown")
    watch.show("log", "before a-planted-secret was made")
    watch.put_away()
    watch.make("a-planted-secret")
    watch.put_away()
    watch.show("GET /admin/tenants", "<p>\n<b>a-planted-secret</b>\n<p>\nnothing")
    assert watch.leaks() == []
    watch.put_away()
    where = ["log", "GET /admin/tenants"]
    assert watch.leaks_of_run() == [f"{each}: a-planted-secret" for each in where]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["maker first", "maker last"])
def test_what_one_worker_makes_is_sought_in_what_another_shows(
    tmp_path: Path, order: tuple[int, int]
) -> None:
    workers = [Watch(tmp_path / f"{name}.shown") for name in "ab"]
    workers[0].make("a planted pass-phrase")
    workers[1].show("metrics", "a planted pass-phrase, and a question to keep")
    workers[1].prompt("a question to keep", may_be_kept=True)
    workers[0].prompt("a question to keep", may_be_kept=False)
    for worker in workers:
        worker.put_away()
    first, last = (workers[index].leaks_of_run() for index in order)
    assert (first, last) == ([], ["metrics: a planted pass-phrase"])


def test_all_secrets_of_a_run_are_sought_and_lines_are_recorded_once(tmp_path: Path) -> None:
    watch, made = Watch(tmp_path / "a.shown"), [new_key().secret for _ in range(2000)]
    for secret in made:
        watch.make(secret)
    for _ in range(9):
        watch.show("table audit_event", f"innocent\n{made[1999]}")
        watch.put_away()
    assert watch.leaks_of_run() == [f"table audit_event: {made[1999]}"]


def test_prompts_are_secrets_but_to_whom_they_are_kept_for(tmp_path: Path) -> None:
    watch = Watch(tmp_path / "a.shown")
    watch.prompt("a private\nlong-private-question", may_be_kept=False)
    watch.prompt("a question to keep", may_be_kept=True)
    for where in ("stored_prompt", "GET /v1/files/file-1/content"):
        watch.show(where, "long-private-question, a question to keep")
    assert watch.leaks() == ["stored_prompt: long-private-question"]
    watch.put_away()
    assert watch.leaks_of_run() == ["stored_prompt: long-private-question"]


async def test_prompts_are_known(told: Watch, served: Served) -> None:
    client, request = served.client(), {"model": BASE, "max_tokens": 1}
    messages = [{"role": "user", "content": "a private question"}]
    await client.chat.completions.create(messages=messages, **request)
    await client.completions.create(prompt=["a private beginning", "b"], **request)
    assert {"a private question", "a private beginning"} <= told.prompts & told.made


PLANTED = {  # in files of their own: two workers take one each
    "test_maker.py": """
def test_one_that_makes_it(watch):
    watch.make("a-planted-secret")
    watch.put_away()
""",
    "test_shower.py": """
def test_another_that_shows_it(watch):
    watch.show("metrics", "a-planted-secret")
    watch.put_away()
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(), ("-n", "2", "--dist", "loadfile")], ids=["one", "two"])
def test_a_run_that_shows_a_secret_fails_at_its_end(tmp_path: Path, workers: list[str]) -> None:
    for name, text in PLANTED.items():
        (tmp_path / name).write_text(text)
    plugins = ["-p", "tests.conftest", "-p", "no:cacheprovider"]
    outside = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    path = os.pathsep.join([str(ROOT), *(str(ROOT / package) for package in PACKAGES)])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, *workers, str(tmp_path)],
        env=outside | {"PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert "metrics: a-planted-secret" in done.stdout
    assert "2 passed, 1 error" in done.stdout
