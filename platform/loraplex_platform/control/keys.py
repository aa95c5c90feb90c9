"""Keys of a project, and admin keys."""

from datetime import timedelta

from fastapi import Response

from loraplex_platform.auth.schemas import KeyPath
from loraplex_platform.control.schemas import (
    AdminKeyOut,
    AdminKeyPatch,
    Id,
    KeyOut,
    KeyPatch,
    NewAdminKey,
    NewAdminKeyOut,
    NewKey,
    NewKeyOut,
    Rotation,
    admin_key_out,
    key_out,
    new_key_out,
)
from loraplex_platform.control.services import (
    AdminKeys,
    Keys,
    PeopleWriter,
    ProjectWriter,
    Reader,
)
from loraplex_platform.kit.pagination import Page, page_of
from loraplex_platform.kit.principal import ALL_SCOPES
from loraplex_platform.rest.route import Once, Pages, Revision, admin_router, tag

router = admin_router()
KEYS = "/tenants/{tenant_id}/projects/{project_id}/keys"
KEY = KEYS + "/{key_id}"


@router.post(KEYS, status_code=201, dependencies=[Once])
async def create_key(
    tenant_id: Id,
    project_id: Id,
    body: NewKey,
    by: ProjectWriter,
    keys: Keys,
    response: Response,
) -> NewKeyOut:
    """The only answer that holds the key itself."""
    plain = await keys.create(
        tenant_id,
        project_id,
        name=body.name,
        scopes=ALL_SCOPES if body.scopes is None else body.scopes,
        expires_at=body.expires_at,
        values=body.model_dump(
            include={"allowed_models", "allowed_networks", "service_account_id"}
        ),
        by=by,
    )
    key = await keys.find(by, KeyPath(tenant_id, project_id, plain.id))
    tag(response, key)
    return new_key_out(key, plain)


@router.get(KEYS)
async def list_keys(
    tenant_id: Id, project_id: Id, by: Reader, keys: Keys, pages: Pages
) -> Page[KeyOut]:
    limit = pages.limit + 1
    rows = await keys.page(by, tenant_id, project_id, after=pages.after, limit=limit)
    used = await keys.last_used(by, tenant_id, rows)
    return page_of([key_out(row, used.get(row.id)) for row in rows], pages.limit)


@router.get(KEY)
async def get_key(
    tenant_id: Id, project_id: Id, key_id: Id, by: Reader, keys: Keys, response: Response
) -> KeyOut:
    key = await keys.find(by, KeyPath(tenant_id, project_id, key_id))
    used = await keys.last_used(by, tenant_id, [key])
    tag(response, key)
    return key_out(key, used.get(key.id))


@router.patch(KEY)
async def change_key(
    tenant_id: Id,
    project_id: Id,
    key_id: Id,
    body: KeyPatch,
    by: ProjectWriter,
    keys: Keys,
    revision: Revision,
    response: Response,
) -> KeyOut:
    path = KeyPath(tenant_id, project_id, key_id)
    key = await keys.change(by, path, body.given, revision=revision)
    tag(response, key)
    return key_out(key)


@router.post(KEY + "/rotate", dependencies=[Once])
async def rotate_key(
    tenant_id: Id, project_id: Id, key_id: Id, body: Rotation, by: ProjectWriter, keys: Keys
) -> NewKeyOut:
    """A new secret under the same id; the old one works until the grace is over."""
    path = KeyPath(tenant_id, project_id, key_id)
    plain = await keys.rotate(by, path, timedelta(seconds=body.grace_seconds))
    return new_key_out(await keys.find(by, path), plain)


@router.delete(KEY)
async def revoke_key(
    tenant_id: Id, project_id: Id, key_id: Id, by: ProjectWriter, keys: Keys
) -> KeyOut:
    """Running servers follow within a second."""
    key = await keys.find(by, KeyPath(tenant_id, project_id, key_id))
    return key_out(await keys.revoke(key.id, by=by))


@router.post("/admin_keys", status_code=201, dependencies=[Once])
async def create_admin_key(
    body: NewAdminKey, by: PeopleWriter, keys: AdminKeys, response: Response
) -> NewAdminKeyOut:
    tenant_id = body.tenant_id if by.tenant_id is None else body.tenant_id or by.tenant_id
    plain = await keys.create(
        body.name, body.role, tenant_id=tenant_id, expires_at=body.expires_at, by=by
    )
    key = await keys.find(by, plain.id)
    tag(response, key)
    return NewAdminKeyOut(**admin_key_out(key).model_dump(), value=str(plain))


@router.get("/admin_keys")
async def list_admin_keys(by: Reader, keys: AdminKeys, pages: Pages) -> Page[AdminKeyOut]:
    rows = await keys.page(by, after=pages.after, limit=pages.limit + 1)
    return page_of([admin_key_out(row) for row in rows], pages.limit)


@router.get("/admin_keys/{key_id}")
async def get_admin_key(key_id: Id, by: Reader, keys: AdminKeys, response: Response) -> AdminKeyOut:
    key = await keys.find(by, key_id)
    tag(response, key)
    return admin_key_out(key)


@router.patch("/admin_keys/{key_id}")
async def rename_admin_key(
    key_id: Id,
    body: AdminKeyPatch,
    by: PeopleWriter,
    keys: AdminKeys,
    revision: Revision,
    response: Response,
) -> AdminKeyOut:
    key = await keys.rename(by, key_id, body.name, revision=revision)
    tag(response, key)
    return admin_key_out(key)


@router.delete("/admin_keys/{key_id}")
async def revoke_admin_key(key_id: Id, by: PeopleWriter, keys: AdminKeys) -> AdminKeyOut:
    """It ends at once."""
    return admin_key_out(await keys.revoke(by, key_id))
