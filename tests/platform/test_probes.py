"""Probes tell the truth; metrics count what happened, with labels of our own."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from tests.platform_stand import BASE, Seeded

from loraplex_engine.fake import FakeEngine
from loraplex_platform.db.migrations import upgrade


@pytest.fixture
async def http(app: FastAPI, keys: Seeded) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def chat(http: httpx2.AsyncClient, key: str, **change: object) -> httpx2.Response:
    body = {"model": BASE, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    headers = {"authorization": f"Bearer {key}"}
    return await http.post("/v1/chat/completions", json=body | change, headers=headers)


async def metrics(http: httpx2.AsyncClient) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = (await http.get("/metrics")).text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_readyz_follows_the_engine(http: httpx2.AsyncClient, engine: FakeEngine) -> None:
    assert (await http.get("/readyz")).json()["status"] == "ok"
    engine.go_away()
    response = await http.get("/readyz")
    assert (response.status_code, response.json()["checks"]["engine"]) == (503, "away")
    assert (await http.get("/livez")).status_code == 200
    engine.come_back()
    assert (await http.get("/readyz")).status_code == 200


async def test_readyz_is_red_until_the_database_is_migrated(
    make_app: Callable[..., FastAPI], tmp_path: Path
) -> None:
    path = tmp_path / "old.sqlite3"
    app = make_app(database_url=f"sqlite:///{path}")
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://test"
    ) as http:
        before = await http.get("/readyz")
        upgrade(f"sqlite:///{path}")
        after = await http.get("/readyz")
    assert (before.status_code, after.status_code) == (503, 200)
    assert before.json()["checks"]["migrations"].startswith("at None")


async def test_readyz_is_red_without_a_database(
    make_app: Callable[..., FastAPI],
) -> None:
    app = make_app(database_url="postgresql://127.0.0.1:1/nowhere")
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://test"
    ) as http:
        response = await http.get("/readyz")
        assert (await http.get("/livez")).status_code == 200
    assert response.json()["checks"]["database"] == "unreachable"


async def test_metrics_count_requests_and_tokens_per_tier_and_outcome(
    http: httpx2.AsyncClient, keys: Seeded
) -> None:
    await chat(http, keys.acme)
    await chat(http, keys.acme, service_tier="flex")
    seen = await metrics(http)
    ended = frozenset({("tier", "batch"), ("outcome", "length")})
    assert seen["loraplex_requests_total", ended] == 1
    assert seen["loraplex_ttft_seconds_count", ended] == 1
    assert seen["loraplex_tpot_seconds_count", ended] == 1
    assert seen["loraplex_queue_wait_seconds_count", ended] == 1
    made = frozenset({("tier", "standard"), ("kind", "completion")})
    assert seen["loraplex_tokens_total", made] == 4


async def test_metrics_show_the_engine(http: httpx2.AsyncClient, engine: FakeEngine) -> None:
    seen = await metrics(http)
    assert seen["loraplex_engine_up", frozenset()] == 1
    assert seen["loraplex_kv_usage_ratio", frozenset()] == 0
    assert seen["loraplex_running", frozenset({("tier", "standard")})] == 0
    assert seen["loraplex_waiting", frozenset({("tier", "standard")})] == 0
    for tier in ("device", "host", "disk"):
        store = frozenset({("store", tier)})
        counted = ("hits", "loads", "load_seconds", "load_failures", "evictions")
        assert all(seen[f"loraplex_adapter_{name}_total", store] == 0 for name in counted)
        held = ("bytes", "budget_bytes", "versions")
        assert all(seen[f"loraplex_adapter_{name}", store] == 0 for name in held)
    engine.go_away()
    assert (await metrics(http))["loraplex_engine_up", frozenset()] == 0


async def test_clients_cannot_make_series(http: httpx2.AsyncClient, keys: Seeded) -> None:
    await chat(http, keys.acme)
    before = set(await metrics(http))
    for name in ("support", "acme-only", "nobody", "x" * 500):
        await chat(http, keys.acme, model=name, user=name)
    assert set(await metrics(http)) == before
    assert all(name.startswith("loraplex_") for name, _ in before)
