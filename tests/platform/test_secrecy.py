"""The watch that every test stands under sees what it should."""

import logging
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import structlog
from fastapi import FastAPI, Response
from tests.secrecy import Watch

from loraplex_platform.auth.keys import new_key
from loraplex_platform.middleware import RequestContext
from loraplex_platform.people.passwords import Passwords
from loraplex_platform.webhooks.signing import new_secret

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
