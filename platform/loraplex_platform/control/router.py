"""`/api/admin/v1`: a realm of its own, which tenants' keys do not open."""

from fastapi import APIRouter

from loraplex_platform.control import audit, keys, people, plans, tenants

router = APIRouter()
for part in (tenants, keys, people, plans, audit):
    router.include_router(part.router)
