"""Projects and their keys: made, rotated, revoked."""

from datetime import timedelta

from starlette.responses import Response

from loraplex_admin.limit_use import uses_of
from loraplex_admin.visit import SHOWN, Change, Page, Visit
from loraplex_platform.admission.limits import DIMENSIONS
from loraplex_platform.auth.models import ApiKey
from loraplex_platform.auth.schemas import KeyPath
from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.kit.principal import ALL_SCOPES, Principal

PROJECTS = "/tenants/{tenant_id}/projects"
PROJECT = PROJECTS + "/{project_id}"
KEY = PROJECT + "/keys/{key_id}"
GRACES = {"0": "at once", "1": "in an hour", "24": "in a day", "168": "in a week"}
LIVES = {"": "never", "30": "in 30 days", "90": "in 90 days", "365": "in a year"}


async def create_project(visit: Visit) -> Response:
    tenant_id = visit.place("tenant_id")
    project = await visit.services.projects.create(visit.by, tenant_id, visit.text("name"), {})
    return visit.goto(f"/tenants/{tenant_id}/projects/{project.id}", done="created")


async def show_project(visit: Visit) -> Response:
    services, by = visit.services, visit.by
    tenant_id, project_id = visit.place("tenant_id"), visit.place("project_id")
    project = await services.projects.find(by, tenant_id, project_id)
    rows = await services.keys.page(by, tenant_id, project_id, **visit.cut)
    return visit.render(
        "project.html",
        tenant=await services.tenants.find(by, tenant_id),
        project=project,
        rows=rows[:SHOWN],
        has_more=len(rows) > SHOWN,
        used=await services.keys.last_used(by, tenant_id, rows[:SHOWN]),
        scopes=ALL_SCOPES,
        lives=LIVES,
    )


async def create_key(visit: Visit) -> Response:
    """The only page that shows the key itself."""
    tenant_id, project_id = visit.place("tenant_id"), visit.place("project_id")
    days = visit.text("expires")
    if days not in LIVES:
        raise InvalidRequest("Say when the key expires.", param="expires")
    now = visit.services.clock.now()
    plain = await visit.services.keys.create(
        tenant_id,
        project_id,
        name=visit.text("name")[:200],
        scopes=[str(scope) for scope in visit.form.getlist("scope")],
        expires_at=now + timedelta(days=int(days)) if days else None,
        by=visit.by,
    )
    back = f"/tenants/{tenant_id}/projects/{project_id}"
    return visit.render("secret.html", title="A new key", secret=str(plain), back=back)


async def show_key(visit: Visit) -> Response:
    services, by, key = visit.services, visit.by, await _key(visit)
    used = await services.keys.last_used(by, key.tenant_id, [key])
    return visit.render(
        "key.html",
        tenant=await services.tenants.find(by, key.tenant_id),
        project=await services.projects.find(by, key.tenant_id, key.project_id),
        key=key,
        used_at=used.get(key.id),
        uses=await uses_of(services, Principal(key.tenant_id, key.project_id, key.id)),
        dimensions=[name for name, of in DIMENSIONS.items() if of.kind != "stock"],
        graces=GRACES,
    )


async def rotate(visit: Visit) -> Response:
    key, hours = await _key(visit), visit.text("grace")
    if hours not in GRACES:
        raise InvalidRequest("Say when the old secret ends.", param="grace")
    back = _path_of(key)
    if not visit.is_confirmed:
        changes = [
            Change("Secret", f"…{key.last_four}", "a new one, shown once"),
            Change("The old secret", "works", f"ends {GRACES[hours]}"),
        ]
        return visit.confirm("Rotate this key?", changes, "Rotate", back=back)
    path = KeyPath(key.tenant_id, key.project_id, key.id)
    plain = await visit.services.keys.rotate(visit.by, path, timedelta(hours=int(hours)))
    return visit.render("secret.html", title="The key's new secret", secret=str(plain), back=back)


async def revoke(visit: Visit) -> Response:
    key = await _key(visit)
    if not visit.is_confirmed:
        note = "This cannot be undone. Requests with it are refused within a second."
        changes = [Change("Key", "works", "refused")]
        return visit.confirm("Revoke this key?", changes, "Revoke", note=note, back=_path_of(key))
    await visit.services.keys.revoke(key.id, by=visit.by)
    return visit.goto(_path_of(key), done="revoked")


async def _key(visit: Visit) -> ApiKey:
    path = KeyPath(visit.place("tenant_id"), visit.place("project_id"), visit.place("key_id"))
    return await visit.services.keys.find(visit.by, path)


def _path_of(key: ApiKey) -> str:
    return f"/tenants/{key.tenant_id}/projects/{key.project_id}/keys/{key.id}"


PAGES = (
    Page("POST", PROJECTS, create_project, "projects"),
    Page("GET", PROJECT, show_project),
    Page("POST", PROJECT + "/keys", create_key, "projects"),
    Page("GET", KEY, show_key),
    Page("POST", KEY + "/rotate", rotate, "projects"),
    Page("POST", KEY + "/revoke", revoke, "projects"),
)
