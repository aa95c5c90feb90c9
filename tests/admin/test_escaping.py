"""Names that attack: every page shows them as text, and as nothing else."""

import re

import pytest
from markupsafe import escape
from tests.console_stand import ConsoleStand
from tests.platform_stand import Seeded
from tests.usage_stand import facts

from loraplex_admin import words
from loraplex_admin.app import PAGES
from loraplex_admin.visit import Page
from loraplex_platform.audit.trail import changing
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.principal import COMMAND_LINE
from loraplex_platform.tenants.repository import TenantRepository
from loraplex_platform.usage.repository import UsageRepository
from loraplex_platform.usage.rollups import sums_of

ATTACKS = {
    "markup": "<img src=x onerror=alert(1)>\"><script>alert(1)</script>' onfocus=alert(1) x='",
    "javascript": "javascript:alert(1)",
    "template": "{{7*7}}{% raw %}",
    "direction": "\u202egnp.exe\u200b",
    "long": "\U0001f600" * 2_500,  # 10 kB
}
LOOKED_AT = [
    page
    for page in PAGES
    if page.method == "GET" and page.permission and page.path != "/audit/export"
]


async def plant(stand: ConsoleStand, attack: str) -> dict[str, str]:
    """The attack as every name that there is; where the rules forbid it, behind their back."""
    state, clock, now = stand.app.state, SystemClock(), SystemClock().now()
    async with changing(state.database, COMMAND_LINE.actor, clock) as session:
        tenants = TenantRepository(session)
        tenant = await tenants.find(COMMAND_LINE, stand.acme)
        project = await tenants.project(COMMAND_LINE, stand.acme, stand.project)
        assert tenant is not None
        assert project is not None
        tenant.name = project.name = attack
    key = await state.keys.create(stand.acme, stand.project, name=attack)
    await state.people.invite("a@b.c", "tenant_viewer", name=attack, tenant_id=stand.acme)
    await state.people.invite("b@b.c", "viewer", name=attack)
    event = facts(
        stand.acme,
        project_id=stand.project,
        key_id=key.id,
        started_at=now,
        ended_at=now,
        model=attack,
        adapter_version=attack,
        error_code=attack,
        end_user=attack,
        client_request_id=attack,
        request_metadata={attack: attack},
    )
    async with state.database.unit_of_work() as session:
        usage = UsageRepository(session)
        await usage.add_up(sums_of(await usage.add_new([event])))
    return {"key_id": key.id, "request_id": event.request_id}


def path_of(page: Page, stand: ConsoleStand, planted: dict[str, str]) -> str:
    places = {"tenant_id": stand.acme, "project_id": stand.project, "subject": stand.acme}
    return page.path.format(**places, **planted, level="tenant", dimension="tokens_per_day")


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_attack_is_text_on_every_page(stand: ConsoleStand, keys: Seeded, attack: str) -> None:
    planted = await plant(stand, attack)
    owner, as_text, shown = await stand.signed_in(), str(escape(words.plain(attack))), 0
    for page in LOOKED_AT:
        answer = await owner.get(path_of(page, stand, planted))
        assert answer.status_code == 200, page.path
        assert not re.search(r"<img|<script>|href=\"javascript:", answer.text), page.path
        assert not re.search(r"<[^>]*[\"'\s]on[a-z]+=", answer.text), page.path
        assert not words.INVISIBLE.search(answer.text), page.path
        shown += as_text in answer.text
    assert shown >= 5
