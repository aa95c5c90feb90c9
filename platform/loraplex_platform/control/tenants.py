"""`/tenants` and their projects and service accounts."""

from fastapi import Response
from starlette.background import BackgroundTask

from loraplex_platform.control.schemas import (
    AccountBody,
    AccountOut,
    Id,
    NewProject,
    NewTenant,
    ProjectOut,
    ProjectPatch,
    PromptStorage,
    TenantOut,
    TenantPatch,
)
from loraplex_platform.control.services import (
    Exporter,
    Keys,
    Projects,
    ProjectWriter,
    Reader,
    TenantExports,
    Tenants,
    TenantWriter,
)
from loraplex_platform.files.ranges import Download
from loraplex_platform.kit.errors import PermissionDenied
from loraplex_platform.kit.pagination import Page, page_of
from loraplex_platform.rest.route import Deleted, Once, Pages, Revision, admin_router, tag

router = admin_router()
PROJECTS = "/tenants/{tenant_id}/projects"
PROJECT = PROJECTS + "/{project_id}"
ACCOUNTS = PROJECT + "/service_accounts"
ACCOUNT = ACCOUNTS + "/{account_id}"


@router.post("/tenants", status_code=201, dependencies=[Once])
async def create_tenant(
    body: NewTenant, by: TenantWriter, tenants: Tenants, response: Response
) -> TenantOut:
    settings = body.given
    tenant = await tenants.create(settings.pop("name"), settings, by=by)
    tag(response, tenant)
    return TenantOut.model_validate(tenant)


@router.get("/tenants")
async def list_tenants(by: Reader, tenants: Tenants, pages: Pages) -> Page[TenantOut]:
    rows = await tenants.page(by, after=pages.after, limit=pages.limit + 1)
    return page_of([TenantOut.model_validate(row) for row in rows], pages.limit)


@router.get("/tenants/{tenant_id}")
async def get_tenant(tenant_id: Id, by: Reader, tenants: Tenants, response: Response) -> TenantOut:
    tenant = await tenants.find(by, tenant_id)
    tag(response, tenant)
    return TenantOut.model_validate(tenant)


@router.patch("/tenants/{tenant_id}")
async def change_tenant(
    tenant_id: Id,
    body: TenantPatch,
    by: TenantWriter,
    tenants: Tenants,
    revision: Revision,
    response: Response,
) -> TenantOut:
    tenant = await tenants.change(by, tenant_id, body.given, revision=revision)
    tag(response, tenant)
    return TenantOut.model_validate(tenant)


@router.patch("/tenants/{tenant_id}/prompt_storage")
async def change_prompt_storage(
    tenant_id: Id,
    body: PromptStorage,
    by: ProjectWriter,
    tenants: Tenants,
    revision: Revision,
    response: Response,
) -> TenantOut:
    """Only the tenant's own people turn it on."""
    values = body.model_dump()
    if by.tenant_id is None and body.stores_prompts:
        raise PermissionDenied("Only the tenant's own people turn this on.")
    tenant = await tenants.change(by, tenant_id, values, revision=revision)
    tag(response, tenant)
    return TenantOut.model_validate(tenant)


@router.get(
    "/tenants/{tenant_id}/export",
    response_class=Download,
    responses={200: {"content": {"application/gzip": {}}, "description": "A .tar.gz."}},
)
async def export_tenant(
    tenant_id: Id, by: Exporter, tenants: Tenants, exports: TenantExports
) -> Download:
    """Rows as lines of JSON, files and adapters; no secrets, and no stored prompts."""
    tenant = await tenants.find(by, tenant_id)
    path = await exports.make(tenant, by.actor)
    return Download(
        path,
        media_type="application/gzip",
        filename=f"{tenant.name}.tar.gz",
        background=BackgroundTask(path.unlink),
    )


@router.post("/tenants/{tenant_id}/suspend", dependencies=[Once])
async def suspend_tenant(tenant_id: Id, by: TenantWriter, tenants: Tenants) -> TenantOut:
    """Its keys are refused and its streams end, within two seconds."""
    return TenantOut.model_validate(await tenants.move(by, tenant_id, "suspended"))


@router.post("/tenants/{tenant_id}/resume", dependencies=[Once])
async def resume_tenant(tenant_id: Id, by: TenantWriter, tenants: Tenants) -> TenantOut:
    return TenantOut.model_validate(await tenants.move(by, tenant_id, "active"))


@router.delete("/tenants/{tenant_id}", status_code=202)
async def close_tenant(tenant_id: Id, by: TenantWriter, tenants: Tenants) -> TenantOut:
    """Ends its keys at once; its content is erased afterwards, its books are kept."""
    return TenantOut.model_validate(await tenants.move(by, tenant_id, "closing"))


@router.post(PROJECTS, status_code=201, dependencies=[Once])
async def create_project(
    tenant_id: Id, body: NewProject, by: ProjectWriter, projects: Projects, response: Response
) -> ProjectOut:
    values = {"allowed_models": body.allowed_models}
    project = await projects.create(by, tenant_id, body.name, values)
    tag(response, project)
    return ProjectOut.model_validate(project)


@router.get(PROJECTS)
async def list_projects(
    tenant_id: Id, by: Reader, projects: Projects, pages: Pages
) -> Page[ProjectOut]:
    rows = await projects.page(by, tenant_id, after=pages.after, limit=pages.limit + 1)
    return page_of([ProjectOut.model_validate(row) for row in rows], pages.limit)


@router.get(PROJECT)
async def get_project(
    tenant_id: Id, project_id: Id, by: Reader, projects: Projects, response: Response
) -> ProjectOut:
    project = await projects.find(by, tenant_id, project_id)
    tag(response, project)
    return ProjectOut.model_validate(project)


@router.patch(PROJECT)
async def change_project(
    tenant_id: Id,
    project_id: Id,
    body: ProjectPatch,
    by: ProjectWriter,
    projects: Projects,
    revision: Revision,
    response: Response,
) -> ProjectOut:
    project = await projects.change(by, tenant_id, project_id, body.given, revision=revision)
    tag(response, project)
    return ProjectOut.model_validate(project)


@router.delete(PROJECT)
async def archive_project(
    tenant_id: Id, project_id: Id, by: ProjectWriter, projects: Projects
) -> ProjectOut:
    """Its keys end; what it used stays in the books."""
    return ProjectOut.model_validate(await projects.archive(by, tenant_id, project_id))


@router.post(ACCOUNTS, status_code=201, dependencies=[Once])
async def create_service_account(
    tenant_id: Id,
    project_id: Id,
    body: AccountBody,
    by: ProjectWriter,
    projects: Projects,
    response: Response,
) -> AccountOut:
    account = await projects.create_account(by, tenant_id, project_id, body.name)
    tag(response, account)
    return AccountOut.model_validate(account)


@router.get(ACCOUNTS)
async def list_service_accounts(
    tenant_id: Id, project_id: Id, by: Reader, projects: Projects, pages: Pages
) -> Page[AccountOut]:
    limit = pages.limit + 1
    rows = await projects.accounts(by, tenant_id, project_id, after=pages.after, limit=limit)
    return page_of([AccountOut.model_validate(row) for row in rows], pages.limit)


@router.get(ACCOUNT)
async def get_service_account(
    tenant_id: Id,
    project_id: Id,
    account_id: Id,
    by: Reader,
    projects: Projects,
    response: Response,
) -> AccountOut:
    account = await projects.account(by, tenant_id, project_id, account_id)
    tag(response, account)
    return AccountOut.model_validate(account)


@router.patch(ACCOUNT)
async def rename_service_account(
    tenant_id: Id,
    project_id: Id,
    account_id: Id,
    body: AccountBody,
    by: ProjectWriter,
    projects: Projects,
    revision: Revision,
    response: Response,
) -> AccountOut:
    ids = (tenant_id, project_id, account_id)
    account = await projects.rename_account(by, ids, body.name, revision=revision)
    tag(response, account)
    return AccountOut.model_validate(account)


@router.delete(ACCOUNT)
async def remove_service_account(
    tenant_id: Id, project_id: Id, account_id: Id, by: ProjectWriter, keys: Keys
) -> Deleted:
    """Its keys end with it."""
    await keys.remove_account(by, tenant_id, project_id, account_id)
    return Deleted(id=account_id)
