"""`/api/admin/v1`: a realm of its own, which tenants' keys do not open."""

from fastapi import APIRouter

from loraplex_platform.control import audit, keys, people, plans, tenants
from loraplex_platform.rest.route import ERRORS

PREFIX = "/api/admin/v1"

router = APIRouter(prefix=PREFIX, responses=ERRORS)
for part in (tenants, keys, people, plans, audit):
    router.include_router(part.router)
