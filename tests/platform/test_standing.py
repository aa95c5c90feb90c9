"""What binds a tenant, a project or a key at a moment, and where its data may be processed."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from openai import PermissionDeniedError
from tests.admin_stand import AdminStand, admin_stand
from tests.platform.batch_stand import jsonl, line, results, run
from tests.platform_stand import BASE, Served, usage_of

from loraplex_platform.auth.authenticator import CACHE_S, Authenticator
from loraplex_platform.auth.uses import EVERY_S
from loraplex_platform.config import Settings
from loraplex_platform.db.scope import across_tenants
from loraplex_platform.kit.clock import ManualClock
from loraplex_platform.kit.principal import COMMAND_LINE
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.models import KeyUse

TENANT, RPM = "/tenants/{tenant_id}", "requests_per_minute"
CHAT = {"model": BASE, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@pytest.fixture
async def stand(served: Served) -> AsyncIterator[AdminStand]:
    async with admin_stand(served.app) as stand:
        yield stand


async def shown(stand: AdminStand, query: str) -> dict[tuple[str, str], tuple[int, str, bool]]:
    """By level and dimension: the value, where it comes from, and whether that will end."""
    answer = (await stand.call("GET", f"{TENANT}/effective{query}")).json()
    return {
        (each["level"], each["dimension"]): (each["value"], each["source"], bool(each["until"]))
        for each in answer["limits"]
    }


async def test_override_holds_for_a_while_at_every_level(served: Served, stand: AdminStand) -> None:
    plan = await stand.made("/plans", {"name": "gold", "limits": {RPM: 10}})
    await stand.call("PATCH", TENANT, {"plan_id": plan["id"]})
    key_id = served.keys.acme.split("_")[1]
    levels = {
        "tenant": "",
        "project": f"?project_id={stand.project}",
        "key": f"?key_id={key_id}",
    }
    assert await shown(stand, levels["key"]) == {("tenant", RPM): (10, "plan", False)}
    for value, (level, query) in enumerate(levels.items(), start=50):
        rule = await stand.call("PUT", f"{TENANT}/limits/{RPM}{query}", {"value": value - 30})
        assert rule.status_code == 200, rule.text
        assert (await shown(stand, query))[level, RPM] == (value - 30, "rule", False)
        ends = (datetime.now(UTC) + timedelta(days=1)).isoformat()
        body = {"value": value, "expires_at": ends, "reason": "launch"}
        assert (
            await stand.call("PUT", f"{TENANT}/overrides/{RPM}{query}", body)
        ).status_code == 200
        assert (await shown(stand, query))[level, RPM] == (value, "override", True)
    assert {level for level, _ in await shown(stand, levels["key"])} == set(levels)
    for level, query in levels.items():
        await stand.call("DELETE", f"{TENANT}/overrides/{RPM}{query}")
        assert (await shown(stand, query))[level, RPM][1] == "rule"


async def test_settings_say_where_they_come_from(stand: AdminStand) -> None:
    plan = await stand.made("/plans", {"name": "gold", "weight": 4, "max_running": 7})
    await stand.call("PATCH", TENANT, {"plan_id": plan["id"], "weight": 2})
    settings = (await stand.call("GET", f"{TENANT}/effective")).json()["settings"]
    assert settings["weight"] == {"value": 2.0, "source": "tenant"}
    assert settings["max_running"] == {"value": 7.0, "source": "plan"}
    assert settings["kv_share"] == {"value": None, "source": "default"}


async def test_data_stays_in_the_regions_that_its_tenant_allows(
    served: Served, stand: AdminStand
) -> None:
    client = served.client()
    await stand.call("PATCH", TENANT, {"allowed_regions": ["elsewhere"]})
    with pytest.raises(PermissionDeniedError, match="test-region") as refused:
        await client.chat.completions.create(**CHAT)
    assert refused.value.code == "region_not_allowed"
    with pytest.raises(PermissionDeniedError):
        await client.completions.create(model=BASE, prompt="hi", max_tokens=1)
    auth = {"authorization": f"Bearer {served.keys.acme}"}
    prefix = {"name": "p", "model": BASE, "prompt": "be brief " * 20}
    answer = await stand.http.post("/v1/prefixes", json=prefix, headers=auth)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "region_not_allowed")
    assert served.engine.requests == []
    assert await usage_of(served.app) == []
    await served.client(served.keys.globex).chat.completions.create(**CHAT)
    await stand.call("PATCH", TENANT, {"allowed_regions": ["elsewhere", "test-region"]})
    await client.chat.completions.create(**CHAT)
    assert {event.region for event in await usage_of(served.app)} == {"test-region"}


async def test_lines_of_a_job_stay_in_the_regions_of_its_tenant(
    served: Served, stand: AdminStand
) -> None:
    await stand.call("PATCH", TENANT, {"allowed_regions": ["elsewhere"]})
    client = served.client()
    batch = await run(client, jsonl(line("a")))
    errors = await results(client, batch.error_file_id)
    assert errors["a"]["response"]["body"]["error"]["code"] == "region_not_allowed"
    assert served.engine.requests == []


async def test_last_use_is_written_once_a_minute(served: Served, settings: Settings) -> None:
    database, clock = served.app.state.database, ManualClock()
    secrets = Secrets.load_or_create(settings.home)
    authenticator = Authenticator(database, secrets, clock)
    written = []
    for _ in range(5):  # one every 24 s
        await authenticator.authenticate(served.keys.acme)
        await authenticator.uses.flush()
        async with database.reading() as session:
            [use] = await session.scalars(across_tenants(KeyUse))
        written.append((use.last_used_at - datetime(2026, 1, 1, tzinfo=UTC)).total_seconds())
        clock.advance(EVERY_S * 0.4)
    assert written == [0, 0, 0, 72, 72]


async def test_rotated_key_works_with_both_secrets_until_the_grace_ends(
    served: Served, stand: AdminStand
) -> None:
    key_id = served.keys.acme.split("_")[1]
    path = f"/tenants/{{tenant_id}}/projects/{{project_id}}/keys/{key_id}/rotate"
    answer = await stand.call("POST", path, {"grace_seconds": 3600})
    both = (served.keys.acme, answer.json()["value"])
    for key in both:
        await served.client(key).models.list()
    await served.app.state.keys.revoke(key_id, by=COMMAND_LINE)
    for key in both:
        auth = {"authorization": f"Bearer {key}"}
        assert (await stand.http.get("/v1/models", headers=auth)).status_code == 401
    assert CACHE_S == 1.0  # the bound that the docs state
