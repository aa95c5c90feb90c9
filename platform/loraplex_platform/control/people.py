"""`/people`: the platform's staff; `/tenants/{id}/people`: a tenant's own."""

from fastapi import Response

from loraplex_platform.control.people_schemas import (
    InvitationOut,
    MemberPatch,
    NewMember,
    NewOperator,
    OperatorPatch,
    PersonOut,
)
from loraplex_platform.control.schemas import Id
from loraplex_platform.control.services import (
    People,
    PeopleWriter,
    Reader,
    StaffReader,
    StaffWriter,
)
from loraplex_platform.kit.pagination import Page, page_of
from loraplex_platform.people.schemas import Invitation
from loraplex_platform.rest.route import Deleted, Once, Pages, Revision, admin_router, tag

router = admin_router()
MEMBERS = "/tenants/{tenant_id}/people"
MEMBER = MEMBERS + "/{person_id}"


@router.post("/people", status_code=201, dependencies=[Once])
async def invite_operator(body: NewOperator, by: StaffWriter, people: People) -> InvitationOut:
    """The token is shown this once: pass it on."""
    return _shown(await people.invite(body.email, body.role, name=body.name, by=by))


@router.get("/people")
async def list_operators(by: StaffReader, people: People, pages: Pages) -> Page[PersonOut]:
    rows = await people.page(by, None, after=pages.after, limit=pages.limit + 1)
    return page_of([PersonOut.model_validate(row) for row in rows], pages.limit)


@router.get("/people/{person_id}")
async def get_operator(
    person_id: Id, by: StaffReader, people: People, response: Response
) -> PersonOut:
    person = await people.find(by, None, person_id)
    tag(response, person)
    return PersonOut.model_validate(person)


@router.patch("/people/{person_id}")
async def change_operator(
    person_id: Id,
    body: OperatorPatch,
    by: StaffWriter,
    people: People,
    revision: Revision,
    response: Response,
) -> PersonOut:
    person = await people.change(by, None, person_id, body.given, revision=revision)
    tag(response, person)
    return PersonOut.model_validate(person)


@router.post("/people/{person_id}/reset", dependencies=[Once])
async def reset_operator(person_id: Id, by: StaffWriter, people: People) -> InvitationOut:
    """A one-time link to a new password."""
    return _shown(await people.reset(by, None, person_id))


@router.delete("/people/{person_id}")
async def remove_operator(person_id: Id, by: StaffWriter, people: People) -> Deleted:
    await people.remove(by, None, person_id)
    return Deleted(id=person_id)


@router.post(MEMBERS, status_code=201, dependencies=[Once])
async def invite_member(
    tenant_id: Id, body: NewMember, by: PeopleWriter, people: People
) -> InvitationOut:
    """The token is shown this once: pass it on."""
    return _shown(
        await people.invite(body.email, body.role, name=body.name, tenant_id=tenant_id, by=by)
    )


@router.get(MEMBERS)
async def list_members(tenant_id: Id, by: Reader, people: People, pages: Pages) -> Page[PersonOut]:
    rows = await people.page(by, tenant_id, after=pages.after, limit=pages.limit + 1)
    return page_of([PersonOut.model_validate(row) for row in rows], pages.limit)


@router.get(MEMBER)
async def get_member(
    tenant_id: Id, person_id: Id, by: Reader, people: People, response: Response
) -> PersonOut:
    person = await people.find(by, tenant_id, person_id)
    tag(response, person)
    return PersonOut.model_validate(person)


@router.patch(MEMBER)
async def change_member(
    tenant_id: Id,
    person_id: Id,
    body: MemberPatch,
    by: PeopleWriter,
    people: People,
    revision: Revision,
    response: Response,
) -> PersonOut:
    person = await people.change(by, tenant_id, person_id, body.given, revision=revision)
    tag(response, person)
    return PersonOut.model_validate(person)


@router.post(MEMBER + "/reset", dependencies=[Once])
async def reset_member(
    tenant_id: Id, person_id: Id, by: PeopleWriter, people: People
) -> InvitationOut:
    """A one-time link to a new password."""
    return _shown(await people.reset(by, tenant_id, person_id))


@router.delete(MEMBER)
async def remove_member(tenant_id: Id, person_id: Id, by: PeopleWriter, people: People) -> Deleted:
    await people.remove(by, tenant_id, person_id)
    return Deleted(id=person_id)


def _shown(invited: Invitation) -> InvitationOut:
    return InvitationOut(person=PersonOut.model_validate(invited.person), token=invited.token)
