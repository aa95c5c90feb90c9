"""People: the platform's staff under Settings, a tenant's under the tenant."""

from typing import Any

from starlette.responses import Response

from loraplex_admin.cookies import is_https
from loraplex_admin.visit import PREFIX, SHOWN, Change, Page, Visit
from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.kit.principal import OPERATOR_ROLES, PERMISSIONS, TENANT_ROLES
from loraplex_platform.people.models import Person

OF_TENANT = "/tenants/{tenant_id}/people"
ACTIONS = {"disable": "Disable", "enable": "Enable", "remove": "Remove", "role": "Change"}


async def show_settings(visit: Visit) -> Response:
    return visit.render(
        "settings.html",
        checks=await visit.services.health.checks(),
        **await _people(visit, None),
        roles=OPERATOR_ROLES,
        permissions=PERMISSIONS,
        tenant=None,
        base="/people",
    )


async def show_people(visit: Visit) -> Response:
    tenant_id = visit.place("tenant_id")
    return visit.render(
        "people.html",
        **await _people(visit, tenant_id),
        roles=TENANT_ROLES,
        tenant=await visit.services.tenants.find(visit.by, tenant_id),
        base=f"/tenants/{tenant_id}/people",
    )


async def _people(visit: Visit, tenant_id: str | None) -> dict[str, Any]:
    """A page of them, for its template."""
    rows = await visit.services.people.page(visit.by, tenant_id, **visit.cut)
    return {"people": rows[:SHOWN], "has_more": len(rows) > SHOWN}


async def invite(visit: Visit) -> Response:
    invited = await visit.services.people.invite(
        visit.text("email"),
        visit.text("role"),
        name=visit.text("name")[:200],
        tenant_id=_tenant_id(visit),
        by=visit.by,
    )
    return _shown_link(visit, invited.person, invited.token)


async def reset(visit: Visit) -> Response:
    made = await visit.services.people.reset(visit.by, _tenant_id(visit), visit.place("person_id"))
    return _shown_link(visit, made.person, made.token)


async def change(visit: Visit) -> Response:
    """Disable, enable, remove, or give another role."""
    people, by, tenant_id = visit.services.people, visit.by, _tenant_id(visit)
    person = await people.find(by, tenant_id, visit.place("person_id"))
    action = visit.text("action")
    if action not in ACTIONS:
        raise InvalidRequest("There is no such action.", param="action")
    verb = ACTIONS[action]
    if not visit.is_confirmed:
        changes, title = [_change(visit, person, action)], f"{verb} {person.email}?"
        if action == "role" and person.role == visit.text("role"):
            changes = []
        return visit.confirm(title, changes, verb, back=_back(visit))
    if action == "remove":
        await people.remove(by, tenant_id, person.id)
    elif action == "role":
        await people.change(by, tenant_id, person.id, {"role": visit.text("role")})
    else:
        state = "disabled" if action == "disable" else "active"
        await people.change(by, tenant_id, person.id, {"state": state})
    return visit.goto(_back(visit), done="removed" if action == "remove" else "changed")


def _change(visit: Visit, person: Person, action: str) -> Change:
    if action == "role":
        return Change("Role", person.role, f"{visit.text('role')}, signed out everywhere")
    after = {"disable": "disabled, signed out everywhere", "enable": "active"}
    return Change(person.email, person.state, after.get(action, "removed"))


def _tenant_id(visit: Visit) -> str | None:
    tenant_id: str | None = visit.request.path_params.get("tenant_id")
    return tenant_id


def _back(visit: Visit) -> str:
    tenant_id = _tenant_id(visit)
    return "/settings" if tenant_id is None else f"/tenants/{tenant_id}/people"


def _shown_link(visit: Visit, person: Person, token: str) -> Response:
    """The platform sends no mail: who makes the link passes it on."""
    scheme = "https" if is_https(visit.request) else "http"
    link = f"{scheme}://{visit.request.url.netloc}{PREFIX}/link#{token}"
    title = f"A link for {person.email}"
    return visit.render("secret.html", title=title, secret=link, back=_back(visit))


PAGES = (
    Page("GET", "/settings", show_settings, is_staff=True),
    Page("POST", "/people", invite, "operators", is_staff=True),
    Page("POST", "/people/{person_id}/reset", reset, "operators", is_staff=True),
    Page("POST", "/people/{person_id}", change, "operators", is_staff=True),
    Page("GET", OF_TENANT, show_people),
    Page("POST", OF_TENANT, invite, "people"),
    Page("POST", OF_TENANT + "/{person_id}/reset", reset, "people"),
    Page("POST", OF_TENANT + "/{person_id}", change, "people"),
)
