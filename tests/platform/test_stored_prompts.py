"""Prompts are never stored unless a tenant turns it on, and then for itself alone."""

from collections.abc import AsyncIterator

import httpx2
import pytest
from fastapi import FastAPI
from tests.admin_stand import AdminStand, admin_stand
from tests.platform_stand import BASE, Served

from loraplex_platform.db.scope import across_tenants
from loraplex_platform.kit.principal import COMMAND_LINE
from loraplex_platform.prompts.models import StoredPrompt

ON, OFF = {"stores_prompts": True}, {"stores_prompts": False}
SETTING = "/tenants/{tenant_id}/prompt_storage"
CHAT = {"model": BASE, "messages": [{"role": "user", "content": "hi there"}], "max_tokens": 3}


async def rows(app: FastAPI) -> list[StoredPrompt]:
    await app.state.inference.tasks.drain()
    async with app.state.database.reading() as session:
        return list(await session.scalars(across_tenants(StoredPrompt)))


@pytest.fixture
async def stand(served: Served) -> AsyncIterator[AdminStand]:
    async with admin_stand(served.app) as stand:
        yield stand


async def test_nothing_is_stored_until_the_tenant_turns_it_on(
    served: Served, stand: AdminStand
) -> None:
    client = served.client()
    await client.chat.completions.create(**CHAT)
    assert await rows(served.app) == []
    assert (await stand.call("PATCH", SETTING, ON, key="acme")).json()["stores_prompts"] is True
    answer = await client.chat.completions.create(**CHAT)
    [row] = await rows(served.app)
    assert row.asked["messages"][0]["content"] == "hi there"
    assert row.answers == [answer.choices[0].message.content]
    await stand.call("PATCH", SETTING, OFF, key="acme")
    await client.chat.completions.create(**CHAT)
    assert len(await rows(served.app)) == 1


async def test_nobody_else_turns_it_on(served: Served, stand: AdminStand) -> None:
    asked = [(key, SETTING) for key in ("owner", "viewer", "acme_viewer", "globex")]
    answers = [(await stand.call("PATCH", path, ON, key=key)).status_code for key, path in asked]
    assert answers == [403, 403, 403, 404]
    assert (await stand.call("PATCH", "/tenants/{tenant_id}", ON)).status_code == 400


async def test_streams_choices_and_completions_are_stored_whole(
    served: Served, stand: AdminStand
) -> None:
    await stand.call("PATCH", SETTING, ON, key="acme")
    client = served.client()
    stream = await client.chat.completions.create(**CHAT, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    plain = await client.completions.create(model=BASE, prompt="once", max_tokens=3, n=2)
    first, second = sorted(await rows(served.app), key=lambda row: row.request_id)
    assert first.answers == [text]
    assert (second.asked, second.answers) == (
        {"prompt": "once"},
        [choice.text for choice in plain.choices],
    )


async def test_tenant_reads_and_deletes_what_is_its_own(served: Served, stand: AdminStand) -> None:
    await stand.call("PATCH", SETTING, ON, key="acme")
    await served.client().chat.completions.create(**CHAT)
    [row] = await rows(served.app)
    path = f"{served.base_url}/v1/stored_prompts"
    async with httpx2.AsyncClient(timeout=60) as http:

        async def status(method: str, where: str, key: str) -> int:
            headers = {"authorization": f"Bearer {key}"}
            return (await http.request(method, path + where, headers=headers)).status_code

        mine = {"authorization": f"Bearer {served.keys.acme}"}
        listed = (await http.get(path, headers=mine)).json()
        assert [each["id"] for each in listed["data"]] == [row.request_id]
        read = (await http.get(f"{path}/{row.request_id}", headers=mine)).json()
        assert (read["asked"], read["answers"]) == (row.asked, row.answers)
        one = f"/{row.request_id}"
        assert await status("GET", one, served.keys.globex) == 404
        assert await status("DELETE", one, served.keys.globex) == 404
        assert await status("GET", one, stand.keys["owner"]) == 401
        assert await status("GET", one, await weak_key(served.app)) == 403
        assert await status("DELETE", one, served.keys.acme) == 200
        assert await status("GET", one, served.keys.acme) == 404


async def weak_key(app: FastAPI) -> str:
    """One of acme's that may do everything but read prompts."""
    acme = await app.state.tenants.get("acme")
    project = await app.state.tenants.default_project(acme)
    scopes = ["inference", "usage:read", "files"]
    return str(await app.state.keys.create(acme.id, project.id, scopes=scopes))


async def test_prompts_of_one_project_are_not_anothers(served: Served, stand: AdminStand) -> None:
    await stand.call("PATCH", SETTING, ON, key="acme")
    await served.client().chat.completions.create(**CHAT)
    project = await served.app.state.projects.create(COMMAND_LINE, stand.acme, "web", {})
    key = str(await served.app.state.keys.create(stand.acme, project.id))
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=60) as http:
        assert (await http.get(f"{served.base_url}/v1/stored_prompts")).json()["data"] == []
