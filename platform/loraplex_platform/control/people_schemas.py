"""What goes in and comes out where people are concerned."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, StringConstraints

from loraplex_platform.control.schemas import Change, Input, Output, Text
from loraplex_platform.kit.principal import OperatorRole, TenantRole

Email = Annotated[
    str,
    StringConstraints(
        max_length=254, pattern=r"^ *[^@\s\x00-\x1f\x7f]{1,64}@[^@\s\x00-\x1f\x7f]{1,189} *$"
    ),
]


class NewPerson(Input):
    email: Email
    name: Text = ""


class NewOperator(NewPerson):
    role: OperatorRole


class NewMember(NewPerson):
    role: TenantRole


class PersonPatch(Change):
    name: Text | None = None
    state: Literal["active", "disabled"] | None = None

    @classmethod
    def required(cls) -> frozenset[str]:
        return frozenset(cls.model_fields)


class OperatorPatch(PersonPatch):
    role: OperatorRole | None = None


class MemberPatch(PersonPatch):
    role: TenantRole | None = None


class PersonOut(Output):
    object: Literal["person"] = "person"
    id: str
    tenant_id: str | None
    email: str
    name: str
    role: str
    state: Literal["invited", "active", "disabled"]
    created_at: datetime


class InvitationOut(BaseModel):
    """The token of a one-time link; whoever holds it sets the person's password."""

    person: PersonOut
    token: str
