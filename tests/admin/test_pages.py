"""The console's pages without a browser: what they show, and what their forms do."""

import pytest
from tests.console_stand import ConsoleStand

STAFF_PAGES = (
    "/",
    "/live",
    "/tenants",
    "/tenants?q=ac",
    "/tenants/new",
    "/tenants/{acme}",
    "/tenants/{acme}/people",
    "/tenants/{acme}/projects/{project}",
    "/tenants/{acme}/limits/tenant/{acme}/tokens_per_day",
    "/requests",
    "/requests?hours=168&tier=batch&outcome=stop",
    "/refusals",
    "/refusals?tenant_id={acme}",
    "/audit",
    "/audit/export",
    "/settings",
    "/search?q=nothing",
)


def path_of(template: str, stand: ConsoleStand) -> str:
    return template.format(acme=stand.acme, project=stand.project)


async def test_every_page_shows(stand: ConsoleStand) -> None:
    owner = await stand.signed_in()
    for template in STAFF_PAGES:
        answer = await owner.get(path_of(template, stand))
        assert answer.status_code == 200, (template, answer.text)
