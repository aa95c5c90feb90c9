"""`/plans`: what tenants may be on."""

from fastapi import Response

from loraplex_platform.control.limit_schemas import NewPlan, PlanOut, PlanPatch
from loraplex_platform.control.schemas import Id
from loraplex_platform.control.services import Plans, PlanWriter, StaffReader
from loraplex_platform.kit.pagination import Page, page_of
from loraplex_platform.rest.route import Deleted, Once, Pages, Revision, admin_router, tag

router = admin_router()


@router.post("/plans", status_code=201, dependencies=[Once])
async def create_plan(body: NewPlan, by: PlanWriter, plans: Plans, response: Response) -> PlanOut:
    values = body.given
    plan = await plans.create(values.pop("name"), values, by=by)
    tag(response, plan)
    return PlanOut.model_validate(plan)


@router.get("/plans")
async def list_plans(by: StaffReader, plans: Plans, pages: Pages) -> Page[PlanOut]:
    rows = await plans.page(after=pages.after, limit=pages.limit + 1)
    return page_of([PlanOut.model_validate(row) for row in rows], pages.limit)


@router.get("/plans/{plan_id}")
async def get_plan(plan_id: Id, by: StaffReader, plans: Plans, response: Response) -> PlanOut:
    plan = await plans.find(plan_id)
    tag(response, plan)
    return PlanOut.model_validate(plan)


@router.patch("/plans/{plan_id}")
async def change_plan(
    plan_id: Id,
    body: PlanPatch,
    by: PlanWriter,
    plans: Plans,
    revision: Revision,
    response: Response,
) -> PlanOut:
    plan = await plans.change(by, plan_id, body.given, revision=revision)
    tag(response, plan)
    return PlanOut.model_validate(plan)


@router.delete("/plans/{plan_id}")
async def remove_plan(plan_id: Id, by: PlanWriter, plans: Plans) -> Deleted:
    """Only a plan that no tenant is on."""
    await plans.remove(by, plan_id)
    return Deleted(id=plan_id)
