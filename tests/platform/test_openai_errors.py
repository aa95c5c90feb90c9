"""Whatever goes wrong, the answer is OpenAI's error object with the right status and code."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import psycopg
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import DataError
from tests.platform_stand import BASE, Seeded

from loraplex_platform.auth.throttle import Throttle
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.openai.schemas import ChatRequest
from loraplex_platform.rest.route import PREFIX

CHAT = {"model": BASE, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
PUBLIC = {
    "/livez",
    "/readyz",
    "/metrics",
    "/openapi.json",
}


@pytest.fixture
async def http(app: FastAPI, keys: Seeded) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {keys.acme}"}
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://test", headers=headers
    ) as client:
        yield client


async def post(http: httpx2.AsyncClient, url: str, body: object) -> httpx2.Response:
    """In escapes, which can spell what is no text."""
    headers = {"content-type": "application/json"}
    return await http.post(url, content=json.dumps(body), headers=headers)


def error_of(response: httpx2.Response, status: int) -> dict[str, Any]:
    """The error object, in the exact shape, with the request's id beside it."""
    assert response.status_code == status, response.text
    assert response.headers["x-request-id"].startswith("req_")
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    found: dict[str, Any] = body["error"]
    return found


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer nonsense"},
        {"authorization": "Basic abc"},
        {"authorization": f"Bearer lpx_{'a' * 16}_{'b' * 43}"},
        {"authorization": "Bearer lpx_' OR 1=1 --_x"},
    ],
)
async def test_every_v1_route_refuses_an_unknown_caller(
    app: FastAPI, http: httpx2.AsyncClient, headers: dict[str, str]
) -> None:
    http.headers.pop("authorization")
    app.state.authenticator._throttle = Throttle(SystemClock(), burst=1000)  # routes are many
    for path, methods in app.openapi()["paths"].items():
        for method in methods:
            url = path.replace("{model_id}", "x")
            response = await http.request(method, url, json=CHAT, headers=headers)
            assert error_of(response, 401)["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"


def test_routes_without_a_principal_are_the_known_public_ones(app: FastAPI) -> None:
    described = set(app.openapi()["paths"])
    others = {
        getattr(route, "path", "").replace(":path", "") for route in _flat(app.routes)
    } - described
    assert others == PUBLIC
    assert all(path.startswith(("/v1/", f"{PREFIX}/")) for path in described)


def _flat(routes: Any) -> list[Any]:
    flat = []
    for route in routes:
        inner = getattr(getattr(route, "original_router", None), "routes", None)
        flat += _flat(inner) if inner else [route]
    return flat


@pytest.mark.parametrize("name", ["nobody", "acme-only-2"])
async def test_unknown_and_foreign_adapters_are_the_same_404(
    http: httpx2.AsyncClient, keys: Seeded, name: str
) -> None:
    http.headers["authorization"] = f"Bearer {keys.globex}"
    foreign = error_of(
        await http.post("/v1/chat/completions", json=CHAT | {"model": "acme-only"}), 404
    )
    unknown = error_of(await http.post("/v1/chat/completions", json=CHAT | {"model": name}), 404)
    assert foreign["code"] == unknown["code"] == "model_not_found"
    assert foreign["message"].replace("acme-only", name) == unknown["message"]


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"tools": [{"type": "function"}]}, "tools", "unsupported_parameter"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"),
        ({"store": True}, "store", "unsupported_parameter"),
        ({"frobnicate": 1}, "frobnicate", "unsupported_parameter"),
        ({"stream_options": {"x": 1}, "stream": True}, "stream_options.x", "unsupported_parameter"),
        ({"stream_options": {"include_usage": True}}, "stream_options", None),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": True}, "max_tokens", "invalid_type"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": None}, "messages", "invalid_type"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages.0.role", "invalid_value"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "invalid_type"),
        ({"stop": ["a"] * 5}, "stop", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", None),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "invalid_value"),
        ({"service_tier": "scale"}, "service_tier", "invalid_value"),
        ({"min_tokens": 2}, "min_tokens", "invalid_value"),
        ({"n": 129}, "n", "invalid_value"),
        ({"seed": 2**63}, "seed", "invalid_value"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "invalid_value"),
        ({"model": "\ud800"}, "model", "invalid_value"),
        ({"model": "\0"}, "model", "invalid_value"),
        ({"user": "\0"}, "user", "invalid_value"),
        ({"metadata": {"a": "\0"}}, "metadata.a", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": "\ud800"}]},
            "messages.0.content",
            "invalid_value",
        ),
        (
            {"messages": [{"role": "user", "content": "a", "name": "\ud800"}]},
            "messages.0.name",
            "invalid_value",
        ),
        (
            {"messages": [{"role": "user", "content": "x" * 900_000}]},
            "messages",
            "context_length_exceeded",
        ),
        (
            {"messages": [{"role": "user", "content": ""}] * 9000},
            "messages",
            "context_length_exceeded",
        ),
        ({"max_tokens": 4096}, "messages", "context_length_exceeded"),
    ],
)
async def test_bad_parameter_is_named(
    http: httpx2.AsyncClient, change: dict[str, object], param: str, code: str | None
) -> None:
    error = error_of(await post(http, "/v1/chat/completions", CHAT | change), 400)
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")


@pytest.mark.parametrize("top_k", [2**63, 2**1000])
async def test_more_candidates_than_tokens_keep_all(http: httpx2.AsyncClient, top_k: int) -> None:
    answer = await http.post("/v1/chat/completions", json=CHAT | {"top_k": top_k})
    assert answer.status_code == 200


async def test_image_parts_are_refused_by_name(http: httpx2.AsyncClient) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]
    body = CHAT | {"messages": [{"role": "user", "content": parts}]}
    error = error_of(await http.post("/v1/chat/completions", json=body), 400)
    assert error["param"] == "messages.0.content.1.type"


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": []},
        {"prompt": [[]]},
        {"prompt": [-1]},
        {"prompt": 5},
        {"prompt": ["a", 5]},
        {"prompt": "\ud800"},
        {"prompt": ["a", "\ud800"]},
        {"prompt": "x" * 900_000},
    ],
)
async def test_bad_prompt_is_named(http: httpx2.AsyncClient, change: dict[str, object]) -> None:
    error = error_of(await post(http, "/v1/completions", {"model": BASE} | change), 400)
    assert error["param"].startswith("prompt")


@pytest.mark.parametrize("name", ["%00", "%ff", "%ed%a0%80", "..%2f..%2fx", "a" * 5000, "%25"])
async def test_a_model_of_any_name_is_not_found(http: httpx2.AsyncClient, name: str) -> None:
    error = error_of(await http.get(f"/v1/models/{name}"), 404)
    assert error["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("method", "url", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "unknown_url"),
        ("GET", "/nothing", 404, "unknown_url"),
        ("PUT", "/v1/chat/completions", 405, "method_not_allowed"),
    ],
)
async def test_unknown_routes_and_methods(
    http: httpx2.AsyncClient, method: str, url: str, status: int, code: str
) -> None:
    assert error_of(await http.request(method, url), status)["code"] == code


@pytest.mark.parametrize("content", [b"", b"{", b'{"model": ', b"[" * 100_000, b"\xff\xfe"])
async def test_malformed_body_is_400(http: httpx2.AsyncClient, content: bytes) -> None:
    response = await http.post(
        "/v1/chat/completions", content=content, headers={"content-type": "application/json"}
    )
    assert error_of(response, 400)["type"] == "invalid_request_error"


async def test_body_is_bounded_without_a_content_length(app: FastAPI, keys: Seeded) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(1000):
            yield b"x" * 65536

    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://test"
    ) as http:
        response = await http.post(
            "/v1/chat/completions",
            content=endless(),
            headers={"authorization": f"Bearer {keys.acme}", "content-type": "application/json"},
        )
    assert error_of(response, 413)["code"] == "request_too_large"


async def test_fault_of_ours_is_500_without_its_text(
    app: FastAPI, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("a secret detail")

    monkeypatch.setattr(app.state.models, "list", fail)
    error = error_of(await http.get("/v1/models"), 500)
    assert error["type"] == "server_error"
    assert "secret" not in error["message"]


async def test_client_request_id_is_kept_apart_from_ours(http: httpx2.AsyncClient) -> None:
    response = await http.get("/v1/models", headers={"x-request-id": "mine"})
    assert response.headers["x-request-id"] != "mine"


async def test_what_a_client_sent_comes_back_in_part_only(http: httpx2.AsyncClient) -> None:
    name = "m" * 100_000
    response = await http.post("/v1/chat/completions", json=CHAT | {"model": name})
    assert error_of(response, 404)["code"] == "model_not_found"
    assert name[:100] in response.text
    assert len(response.text) < 5_000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(name=st.sampled_from(sorted(ChatRequest.model_fields)), value=JSON)
async def test_any_json_value_of_any_parameter_is_served_or_refused(
    app: FastAPI, keys: Seeded, name: str, value: object
) -> None:
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
        content = json.dumps(CHAT | {name: value})
        response = await http.post(
            "/v1/chat/completions",
            content=content,
            headers={"authorization": f"Bearer {keys.acme}", "content-type": "application/json"},
        )
    assert response.status_code in {200, 400, 404}


@pytest.mark.parametrize(
    ("fault", "status"),
    [(psycopg.DataError("NUL"), 400), (psycopg.errors.NumericValueOutOfRange("22003"), 500)],
    ids=["not sent", "refused"],
)
async def test_what_the_database_refuses_is_our_fault_and_what_it_never_saw_the_callers(
    app: FastAPI, http: httpx2.AsyncClient, fault: psycopg.DataError, status: int
) -> None:
    @app.get("/stored")
    async def store() -> None:
        raise DataError("INSERT", {}, fault)

    assert "INSERT" not in error_of(await http.get("/stored"), status)["message"]
