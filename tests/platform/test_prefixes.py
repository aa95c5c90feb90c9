"""`/v1/prefixes`: a tenant's own system prompts, kept warm within its quota."""

import asyncio
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI, NotFoundError
from tests.platform_stand import BASE, Served, add_adapter

from loraplex_engine.messages import DropPrefix, RegisterPrefix
from loraplex_platform.admission.plans import PlanService
from loraplex_platform.admission.service import LimitService, Subject
from loraplex_platform.db.scope import across_tenants
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.principal import COMMAND_LINE
from loraplex_platform.models import Adapter
from loraplex_platform.prefixes.warmth import Warmth
from loraplex_platform.tenants.schemas import TenantChange
from loraplex_platform.tenants.service import TenantService

SYSTEM = {"role": "system", "content": "Answer in one short sentence, and never in French."}
ASK = [SYSTEM, {"role": "user", "content": "why?"}]


async def register(client: AsyncOpenAI, **change: Any) -> Any:
    body = {"name": "brief", "model": BASE, "messages": [SYSTEM]} | change
    return await client.post("/prefixes", body=body, cast_to=object)


async def listed(client: AsyncOpenAI) -> list[Any]:
    return (await client.get("/prefixes", cast_to=object))["data"]  # type: ignore[index]


async def test_a_prefix_is_warm_for_the_first_request_and_says_what_it_saved(
    served: Served,
) -> None:
    client = served.client()
    made = await register(client)
    # <|im_start|>system\n…<|im_end|>\n<|im_start|>user\n, in whole blocks of 16 tokens
    common = 1 + len("system\n") + len(SYSTEM["content"]) + 1 + 1 + 1 + len("user\n")
    assert made["num_tokens"] == common // 16 * 16
    answer = await client.chat.completions.create(model=BASE, messages=ASK, max_tokens=1)
    assert answer.usage.prompt_tokens_details.cached_tokens == made["num_tokens"]
    (shown,) = await listed(client)
    assert (shown["name"], shown["hits"], shown["requests"], shown["hit_rate"]) == (
        "brief",
        1,
        1,
        1,
    )
    assert shown["saved_tokens"] == shown["warm_tokens"] == made["num_tokens"]


async def test_another_tenants_prefix_does_not_exist(served: Served) -> None:
    made = await register(served.client())
    stranger = served.client(served.keys.globex)
    assert await listed(stranger) == []
    for known_as in (made["id"], "brief"):
        with pytest.raises(NotFoundError):
            await stranger.delete(f"/prefixes/{known_as}", cast_to=object)
    answer = await stranger.chat.completions.create(model=BASE, messages=ASK, max_tokens=1)
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


async def page_of(client: AsyncOpenAI, **params: Any) -> Any:
    return await client.get("/prefixes", cast_to=object, options={"params": params})


async def test_prefixes_are_read_by_id_or_name_and_listed_over_pages(served: Served) -> None:
    client = served.client()
    made = [await register(client, name=name) for name in ("b", "c", "a")]
    for known_as in (made[0]["id"], "b"):
        one: Any = await client.get(f"/prefixes/{known_as}", cast_to=object)
        assert one["id"] == made[0]["id"]
    first = await page_of(client, limit=2)
    await client.delete(f"/prefixes/{first['last_id']}", cast_to=object)  # what it goes on from
    rest = await page_of(client, limit=2, after=first["last_id"])
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert (len(first["data"]), len(rest["data"])) == (2, 1)
    seen = [each["name"] for each in (*first["data"], *rest["data"])]
    assert sorted(seen) == ["a", "b", "c"]
    with pytest.raises(NotFoundError):
        await served.client(served.keys.globex).get(f"/prefixes/{made[0]['id']}", cast_to=object)


async def test_the_quota_is_the_tenants_column(served: Served) -> None:
    service = TenantService(served.app.state.database, SystemClock())
    await service.set("acme", TenantChange(prefix_tokens=100))
    await register(served.client())
    with pytest.raises(APIStatusError) as caught:
        await register(served.client(), name="second")
    assert (caught.value.status_code, caught.value.code) == (429, "insufficient_quota")
    assert [shown["name"] for shown in await listed(served.client())] == ["brief"]


async def test_prefixes_registered_at_once_never_take_more_than_the_quota(served: Served) -> None:
    service = TenantService(served.app.state.database, SystemClock())
    await service.set("acme", TenantChange(prefix_tokens=150))  # one takes 64
    client = served.client()
    tries = [register(client, name=f"brief-{i}") for i in range(20)]
    results = await asyncio.gather(*tries, return_exceptions=True)
    refused = [r for r in results if isinstance(r, APIStatusError)]
    assert {error.code for error in refused} == {"insufficient_quota"}
    assert (len(refused), len(await listed(client))) == (18, 2)


async def test_without_a_setting_of_its_own_the_plan_says_how_many_tokens(
    served: Served,
) -> None:
    database = served.app.state.database
    tenants = TenantService(database, SystemClock())
    tenant = await tenants.get("acme")
    limits = {"registered_prefix_tokens": 100}
    plan = await PlanService(database, SystemClock()).create("small", {"limits": limits})
    await tenants.change(COMMAND_LINE, tenant.id, {"plan_id": plan.id})
    await register(served.client())
    with pytest.raises(APIStatusError, match="registered prefix tokens"):
        await register(served.client(), name="second")
    own = Subject(tenant.id, "tenant", tenant.id)
    await LimitService(database, SystemClock()).set(
        own, "registered_prefix_tokens", 1000, strict=False
    )
    await register(served.client(), name="second")


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"prompt": "x" * 40}, 400, "messages"),
        ({"messages": None, "prompt": "short"}, 400, "prompt"),
        ({"messages": None}, 400, "messages"),
        ({"name": ""}, 400, "name"),
        ({"model": "nobody"}, 404, "model"),
    ],
)
async def test_what_cannot_be_a_prefix_is_refused(
    served: Served, change: dict[str, Any], status: int, param: str
) -> None:
    with pytest.raises(APIStatusError) as caught:
        await register(served.client(), **change)
    assert (caught.value.status_code, caught.value.param) == (status, param)


async def test_a_name_is_used_once_and_free_again_after_its_prefix(served: Served) -> None:
    client = served.client()
    made = await register(client)
    with pytest.raises(APIStatusError) as caught:
        await register(client)
    assert caught.value.status_code == 409
    gone = await client.delete("/prefixes/brief", cast_to=object)
    assert gone == {"id": made["id"], "object": "prefix", "deleted": True}
    assert served.engine.commands[-1] == DropPrefix(made["id"])
    await register(client)


def registrations(served: Served) -> list[RegisterPrefix]:
    return [c for c in served.engine.commands if isinstance(c, RegisterPrefix)]


async def test_prefixes_outlive_the_engine(served: Served) -> None:
    await register(served.client())
    served.engine.go_away()
    served.engine.come_back()
    warmth: Warmth = served.app.state.warmth
    await asyncio.gather(warmth.update(), warmth.update())
    first, again = registrations(served)
    assert first == again


async def test_a_prefix_follows_its_adapters_name_to_a_new_version(served: Served) -> None:
    await register(served.client(), model="support")
    database = served.app.state.database
    async with database.unit_of_work() as session:
        statement = across_tenants(Adapter).where(Adapter.version == "acme-support")
        (await session.scalars(statement)).one().version = "retrained"
    await served.app.state.warmth.update()
    assert [r.adapter for r in registrations(served)] == ["acme-support", "retrained"]


async def test_a_prompt_without_a_chat_template_is_a_prefix_too(served: Served) -> None:
    await add_adapter(served.app.state.database, *await _acme(served), version="v")
    client = served.client()
    made = await register(client, messages=None, prompt="y" * 40, model="plain")
    answer = await client.completions.create(model="plain", prompt="y" * 40 + "z", max_tokens=1)
    assert made["num_tokens"] == answer.usage.prompt_tokens_details.cached_tokens == 32


async def _acme(served: Served) -> tuple[str, str]:
    service = TenantService(served.app.state.database, SystemClock())
    return (await service.get("acme")).id, "plain"


async def test_nobody_lists_prefixes_without_a_key(served: Served) -> None:
    with pytest.raises(APIStatusError) as caught:
        await listed(served.client("lpx_nobody_nothing"))
    assert caught.value.status_code == 401
