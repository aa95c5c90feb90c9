"""Prices, credits and how a tenant is billed."""

from fastapi import Response

from loraplex_platform.control.billing_schemas import (
    BillingOut,
    BookBody,
    BookOut,
    GrantBody,
    GrantOut,
    ProfileBody,
)
from loraplex_platform.control.schemas import Id
from loraplex_platform.control.services import (
    BillingWriter,
    Credits,
    Prices,
    Reader,
    StaffReader,
    Tenants,
)
from loraplex_platform.kit.pagination import Page, page_of
from loraplex_platform.rest.route import Once, Pages, Revision, admin_router, tag
from loraplex_platform.usage.money import pico_of

router = admin_router()
CREDITS = "/tenants/{tenant_id}/credits"


@router.post("/price_books", status_code=201, dependencies=[Once])
async def publish_prices(
    body: BookBody, by: BillingWriter, prices: Prices, tenants: Tenants
) -> BookOut:
    """A new version of the list, or of a tenant's own prices; it never changes afterwards."""
    if body.tenant_id is not None:
        await tenants.find(by, body.tenant_id)
    content = body.content.model_dump(exclude_none=True)
    book = await prices.publish(body.effective_from, content, body.tenant_id, by)
    return BookOut.of(book)


@router.get("/price_books")
async def list_prices(by: StaffReader, prices: Prices, pages: Pages) -> Page[BookOut]:
    """All that were ever published, in the order in which they take effect."""
    books = await prices.page(after=pages.after, limit=pages.limit + 1)
    return page_of([BookOut.of(book) for book in books], pages.limit)


@router.get("/price_books/{book_id}")
async def get_price_book(book_id: Id, by: StaffReader, prices: Prices) -> BookOut:
    return BookOut.of(await prices.find(book_id))


@router.get("/tenants/{tenant_id}/billing")
async def get_billing(
    tenant_id: Id, by: Reader, tenants: Tenants, credits: Credits, response: Response
) -> BillingOut:
    await tenants.find(by, tenant_id)
    profile = await credits.profile(tenant_id)
    tag(response, profile)
    return BillingOut.of(profile, await credits.balance(tenant_id))


@router.put("/tenants/{tenant_id}/billing")
async def set_billing(
    tenant_id: Id,
    body: ProfileBody,
    by: BillingWriter,
    tenants: Tenants,
    credits: Credits,
    revision: Revision,
    response: Response,
) -> BillingOut:
    """Zone, address, tax, minimum fee, whether credits are all that it may spend."""
    await tenants.find(by, tenant_id)
    profile = await credits.set_profile(body.profile(tenant_id), by=by, revision=revision)
    tag(response, profile)
    return BillingOut.of(profile, await credits.balance(tenant_id))


@router.post(CREDITS, status_code=201, dependencies=[Once])
async def grant_credit(
    tenant_id: Id, body: GrantBody, by: BillingWriter, tenants: Tenants, credits: Credits
) -> GrantOut:
    await tenants.find(by, tenant_id)
    row = await credits.grant(
        tenant_id,
        body.key,
        pico_of(body.amount),
        funding=body.funding,
        priority=body.priority,
        expires_at=body.expires_at,
        by=by,
    )
    return GrantOut.of(row)


@router.get(CREDITS)
async def list_credits(
    tenant_id: Id, by: Reader, tenants: Tenants, credits: Credits, pages: Pages
) -> Page[GrantOut]:
    await tenants.find(by, tenant_id)
    rows = await credits.grant_page(tenant_id, after=pages.after, limit=pages.limit + 1)
    return page_of([GrantOut.of(row) for row in rows], pages.limit)


@router.get(CREDITS + "/{grant_id}")
async def get_credit(
    tenant_id: Id, grant_id: Id, by: Reader, tenants: Tenants, credits: Credits
) -> GrantOut:
    await tenants.find(by, tenant_id)
    return GrantOut.of(await credits.find(tenant_id, grant_id))
