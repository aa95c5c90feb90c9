"""Hostile requests to a running server: each is answered cleanly, and a neighbour notices nothing."""

import asyncio
import json
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI
from tests.e2e.stand import Served, engine_of, holds_nothing, until_stats

pytestmark = pytest.mark.slow

CHAT, COMPLETION = "/chat/completions", "/completions"
NAN, INFINITY = float("nan"), float("inf")
NUMBERS = (NAN, INFINITY, 1e308, -1, 1e-320, 2**63, 2**1000, "1", True, [])
NUMERIC = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "max_tokens", "max_completion_tokens", "min_tokens", "n",
)  # fmt: skip
TEXTS: tuple[Any, ...] = ("", "\0", "\ud800", None, [], {}, [[[]]], [{"type": "text"}], 5)
CHANGES: list[tuple[str, dict[str, Any]]] = [
    *((CHAT, {name: value}) for name in NUMERIC for value in NUMBERS),
    *((CHAT, {"messages": [{"role": "user", "content": text}]}) for text in TEXTS),
    *((COMPLETION, {"prompt": text}) for text in TEXTS),
    *((COMPLETION, {"prompt": ids}) for ids in ([259], [-1], [2**70], [True], [[1], [9999]])),
    *((CHAT, {"model": name}) for name in ("", "\0", "\ud800", "../../etc/passwd", "x" * 100_000)),
    *((CHAT, {"stop": stop}) for stop in ([""], ["a"] * 100_000, "x" * 1_000_000, "\ud800", [None])),
    *((CHAT, {"logit_bias": {key: 1}}) for key in ("9" * 5000, "-1", "٣", "", "259")),
    (CHAT, {"logit_bias": {str(token): -100 for token in range(259)}}),
    (CHAT, {"user": "\0"}),
    (CHAT, {"metadata": {"\ud800": "\0"}}),
    (CHAT, {"messages": [{"role": "user", "content": "x" * 9_000_000}]}),
    (CHAT, {"messages": [{"role": "user", "content": ""}] * 50_000}),
    (COMPLETION, {"prompt": "x" * 9_000_000}),
    (COMPLETION, {"prompt": "x" * 11_000_000}),
    (CHAT, {"n": 128, "logprobs": True, "top_logprobs": 20}),
    (CHAT, {"n": 1000}),
]  # fmt: skip
BODIES = (b"", b"null", b"{", b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe", b"NaN", b"1" * 9999)
QUESTION = {"messages": [{"role": "user", "content": "hi"}]}
MAY_BE_ANSWERED = {200, 400, 404, 413}


def batched(items: list[tuple[str, bytes]], size: int) -> list[list[tuple[str, bytes]]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def bodies(model: str) -> list[tuple[str, bytes]]:
    asked = {CHAT: QUESTION, COMPLETION: {"prompt": "hi"}}
    usual = {"model": model, "max_tokens": 2}
    spelled = [(url, json.dumps(usual | asked[url] | c).encode()) for url, c in CHANGES]
    return [*spelled, *((CHAT, body) for body in BODIES)]


async def neighbours_tokens(client: AsyncOpenAI, model: str, count: int) -> list[int]:
    answer = await client.chat.completions.create(
        model=model, max_tokens=count, **QUESTION, seed=3,  # type: ignore[call-overload]
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )  # fmt: skip
    tokens: list[int] = answer.choices[0].token_ids
    return tokens


async def check(http: httpx2.AsyncClient, url: str, body: bytes) -> None:
    response = await http.post(url, content=body)
    assert response.status_code in MAY_BE_ANSWERED, (body[:200], response.text)
    assert response.headers["x-request-id"].startswith("req_")
    if response.status_code != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_hostile_requests_are_refused_and_the_neighbour_goes_on(served: Served) -> None:
    engine_pid = served.child("loraplex_engine").pid
    key, model = served.demo["tenants"]["acme"]["api_key"], served.model.name
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    async with (
        served.async_client("globex") as neighbour,
        httpx2.AsyncClient(timeout=60, headers=headers) as http,
        engine_of(served) as engine,
    ):
        alone = await neighbours_tokens(neighbour, model, 50)
        for some in batched(bodies(model), 16):
            checks = [check(http, served.base_url + url, body) for url, body in some]
            beside, *_ = await asyncio.gather(neighbours_tokens(neighbour, model, 50), *checks)
            assert beside == alone, [body[:200] for _, body in some]
        await until_stats(engine, holds_nothing)
    assert served.child("loraplex_engine").pid == engine_pid
