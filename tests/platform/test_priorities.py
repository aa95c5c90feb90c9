"""Tiers, shares and waiting, as a client meets them."""

import asyncio

import pytest
from fastapi import FastAPI
from openai import APIStatusError, InternalServerError, NotFoundError
from tests.platform_stand import BASE, Served, usage_of
from tests.until import until

from loraplex_engine.messages import CheckAdapter, SetTenant, TenantShare
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.tenants.live_shares import PERIOD_S
from loraplex_platform.tenants.schemas import TenantChange
from loraplex_platform.tenants.service import TenantService

CHAT = {"model": BASE, "messages": [{"role": "user", "content": "hello"}]}
LONG = CHAT | {"max_tokens": 1000}


async def test_a_changed_share_reaches_what_waits_within_a_second(served: Served) -> None:
    served.engine.step_s = 0.05
    running = asyncio.create_task(served.client().chat.completions.create(**LONG))
    await until(lambda: served.engine.num_running == 1)
    service = TenantService(served.app.state.database, SystemClock())
    tenant = await service.set("acme", TenantChange(weight=4.0, max_running=2))
    changed = SetTenant(TenantShare(tenant.id, 4.0, 2))
    await until(lambda: changed in served.engine.commands[-1:])
    served.engine.step_s = 0.0
    await running
    assert PERIOD_S < 0.5  # the promised second has room for the query


async def test_a_tenant_without_work_is_nobodys_matter(served: Served) -> None:
    await asyncio.sleep(1)
    assert [c for c in served.engine.commands if not isinstance(c, CheckAdapter)] == []


async def test_a_queue_too_long_is_a_503_that_says_when_to_come_back(served: Served) -> None:
    served.engine.refuse_with = ("overloaded", 12.3)
    with pytest.raises(InternalServerError) as caught:
        await served.client().chat.completions.create(**CHAT)
    assert caught.value.status_code == 503
    assert caught.value.code == "server_is_overloaded"
    headers = caught.value.response.headers
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("13", "12300")
    [event] = await usage_of(served.app)
    assert (event.outcome, event.error_code, event.completion_tokens) == ("error", "overloaded", 0)


async def test_a_deadline_that_passed_is_a_504(served: Served) -> None:
    served.engine.refuse_with = ("timeout", None)
    with pytest.raises(APIStatusError) as caught:
        await served.client().chat.completions.create(**CHAT)
    assert (caught.value.status_code, caught.value.code) == (504, "timeout")


async def test_ones_own_live_request_is_listed_and_explained(served: Served, app: FastAPI) -> None:
    served.engine.step_s = 0.05
    running = asyncio.create_task(served.client().chat.completions.create(**LONG))
    await until(lambda: served.engine.num_running == 1)
    client, stranger = served.client(), served.client(served.keys.globex)
    listed = (await client.get("/requests", cast_to=object))["data"]
    assert [(r["tier"], r["phase"]) for r in listed] == [("standard", "decode")]
    why = await client.get(f"/requests/{listed[0]['id']}/explain", cast_to=object)
    assert (why["id"], why["phase"], why["reason"]) == (listed[0]["id"], "decode", None)
    assert (await stranger.get("/requests", cast_to=object))["data"] == []
    for asks, request_id in ((stranger, listed[0]["id"]), (client, "req_unknown")):
        with pytest.raises(NotFoundError):
            await asks.get(f"/requests/{request_id}/explain", cast_to=object)
    served.engine.step_s = 0.0
    await running


async def test_a_request_of_several_choices_is_explained_by_its_own_id(served: Served) -> None:
    served.engine.step_s = 0.05
    create = served.client().chat.completions.create
    running = asyncio.create_task(create(**LONG, n=2))
    await until(lambda: served.engine.num_running == 2)
    request_id = served.engine.requests[0].parent_id
    why = await served.client().get(f"/requests/{request_id}/explain", cast_to=object)
    assert why["phase"] == "decode"
    served.engine.step_s = 0.0
    await running
