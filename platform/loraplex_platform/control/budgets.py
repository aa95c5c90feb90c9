"""Money that a tenant, a project or a key may spend in a day or month, and what was crossed."""

from typing import Literal

from fastapi import Response

from loraplex_platform.control.billing_schemas import AlertOut, BudgetBody, BudgetOut
from loraplex_platform.control.limits import OfSubject
from loraplex_platform.control.schemas import Id
from loraplex_platform.control.services import BillingWriter, Budgets, Reader, Tenants
from loraplex_platform.kit.pagination import Page, page_of
from loraplex_platform.rest.route import Deleted, Pages, Revision, admin_router, tag
from loraplex_platform.usage.money import pico_of

router = admin_router()
BUDGETS = "/tenants/{tenant_id}/budgets"
Span = Literal["day", "month"]


@router.get(BUDGETS)
async def list_budgets(
    tenant_id: Id, by: Reader, tenants: Tenants, budgets: Budgets, pages: Pages
) -> Page[BudgetOut]:
    """How each budget of the tenant, its projects and its keys stands."""
    await tenants.find(by, tenant_id)
    states = await budgets.page(tenant_id, after=pages.after, limit=pages.limit + 1)
    return page_of([BudgetOut.of(state) for state in states], pages.limit)


@router.get(BUDGETS + "/{span}")
async def get_budget(
    span: Span, by: Reader, of: OfSubject, budgets: Budgets, response: Response
) -> BudgetOut:
    state = await budgets.find(of.level, of.id, span)
    tag(response, state.budget)
    return BudgetOut.of(state)


@router.put(BUDGETS + "/{span}")
async def set_budget(
    span: Span,
    body: BudgetBody,
    by: BillingWriter,
    of: OfSubject,
    budgets: Budgets,
    revision: Revision,
    response: Response,
) -> BudgetOut:
    state = await budgets.set(
        of.tenant_id,
        of.level,
        of.id,
        span,
        pico_of(body.amount),
        is_hard=body.is_hard,
        by=by,
        revision=revision,
    )
    tag(response, state.budget)
    return BudgetOut.of(state)


@router.delete(BUDGETS + "/{span}")
async def remove_budget(span: Span, by: BillingWriter, of: OfSubject, budgets: Budgets) -> Deleted:
    """And what was crossed of it."""
    return Deleted(id=await budgets.remove(of.level, of.id, span, by=by))


@router.get("/tenants/{tenant_id}/budget_alerts")
async def list_budget_alerts(
    tenant_id: Id, by: Reader, tenants: Tenants, budgets: Budgets, pages: Pages
) -> Page[AlertOut]:
    """Which shares of its budgets were spent, and when: by budget, the oldest first."""
    await tenants.find(by, tenant_id)
    rows = await budgets.alert_page(tenant_id, after=pages.after, limit=pages.limit + 1)
    return page_of([AlertOut.of(row) for row in rows], pages.limit)
