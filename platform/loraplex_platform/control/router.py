"""`/api/admin/v1`: a realm of its own, which tenants' keys do not open."""

from fastapi import APIRouter

from loraplex_platform.control import (
    audit,
    billing,
    budgets,
    invoices,
    keys,
    limits,
    people,
    plans,
    tenants,
    webhooks,
)

router = APIRouter()
for part in (tenants, keys, people, plans, limits, billing, budgets, invoices, webhooks, audit):
    router.include_router(part.router)
