"""A closed tenant leaves its books behind and nothing else."""

import asyncio

import pytest
from fastapi import FastAPI
from openai import AuthenticationError
from sqlalchemy import create_engine, text
from tests.admin_stand import PROJECT, admin_stand
from tests.platform_stand import BASE, Served, usage_of

from loraplex_platform.auth.authenticator import CACHE_S
from loraplex_platform.db.database import sync_url

CONTENT = ("person", "one_time_link", "login_session", "webhook", "webhook_delivery")


def rows(app: FastAPI, query: str, tenant_id: str) -> int:
    engine = create_engine(sync_url(app.state.database.url))
    with engine.connect() as connection:
        count: int = connection.execute(text(query), {"t": tenant_id}).scalar_one()
    engine.dispose()
    return count


async def test_closed_tenant_leaves_its_books_and_nothing_else(served: Served) -> None:
    app, client = served.app, served.client()
    await client.chat.completions.create(
        model=BASE, messages=[{"role": "user", "content": "hi"}], max_tokens=2
    )
    await client.files.create(file=("a.jsonl", b"{}\n"), purpose="user_data")
    assert len(await usage_of(app)) == 1
    async with admin_stand(app) as stand:
        member = {"email": "a@b", "role": "tenant_admin"}
        invited = await stand.made("/tenants/{tenant_id}/people", member)
        await app.state.people.redeem(invited["token"], "a long password")
        await app.state.sessions.open("a@b", "a long password")
        await stand.made("/tenants/{tenant_id}/webhooks", {"url": "https://example.org/"})
        await stand.call("DELETE", "/tenants/{tenant_id}")
        await app.state.housekeeper.tidy()
        tenant = (await stand.call("GET", "/tenants/{tenant_id}")).json()
        assert tenant["state"] == "closed"
        keys = (await stand.call("GET", PROJECT + "/keys")).json()["data"]
        assert all(key["revoked_at"] for key in keys)
        assert (await stand.call("GET", "/tenants/{tenant_id}", key="acme")).status_code == 401
        assert (
            await stand.call("GET", f"/tenants/{stand.globex}", key="globex")
        ).status_code == 200
        acme = stand.acme
    await asyncio.sleep(CACHE_S)  # the longest a key is believed without a look
    with pytest.raises(AuthenticationError):
        await client.models.list()
    left = {
        name: rows(app, f"SELECT count(*) FROM {name} WHERE tenant_id = :t", acme)
        for name in CONTENT
    }
    assert left == dict.fromkeys(CONTENT, 0)
    living = "SELECT count(*) FROM adapter WHERE tenant_id = :t AND removed_at IS NULL"
    assert rows(app, living, acme) == 0
    assert rows(app, "SELECT count(*) FROM usage_event WHERE tenant_id = :t", acme) == 1
    assert rows(app, "SELECT count(*) FROM audit_event WHERE tenant_id = :t", acme) > 0
