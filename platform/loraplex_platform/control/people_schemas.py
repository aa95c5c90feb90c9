"""What goes in and comes out where people are concerned."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, StringConstraints

from loraplex_platform.control.schemas import Change, Output, Text
from loraplex_platform.kit.bodies import Body
from loraplex_platform.kit.principal import OperatorRole, TenantRole

# Neither controls nor spaces, of which regular expressions differ: what \s is depends on who reads it.
SEEN = r"[^@\x00-\x20\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]"
Email = Annotated[
    str, StringConstraints(max_length=254, pattern=rf"^ *{SEEN}{{1,64}}@{SEEN}{{1,189}} *$")
]


class NewPerson(Body):
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
