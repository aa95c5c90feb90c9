"""What is said about people."""

import re
from typing import Literal, NamedTuple

from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.kit.principal import Actor, Administrator, Role
from loraplex_platform.people.models import Person

PersonState = Literal["invited", "active", "disabled"]
Purpose = Literal["invite", "reset"]
EMAIL = re.compile(r"[^@\s\x00-\x1f]{1,64}@[^@\s\x00-\x1f]{1,189}")
MIN_PASSWORD, MAX_PASSWORD = 12, 512


class Invitation(NamedTuple):
    """A person and the link's token, which is seen this once."""

    person: Person
    token: str


class Visitor(NamedTuple):
    """Who uses a session."""

    person: Person
    session_id: str
    administrator: Administrator


def administrator_of(person: Person) -> Administrator:
    role: Role = person.role  # type: ignore[assignment]  # check_role let it in
    return Administrator(Actor("person", person.id, person.email), role, person.tenant_id)


def email_of(text: str) -> str:
    email = text.strip().lower()
    if not EMAIL.fullmatch(email):
        raise InvalidRequest("not an e-mail address", param="email")
    return email


def check_password(password: str) -> None:
    if not MIN_PASSWORD <= len(password) <= MAX_PASSWORD:
        raise InvalidRequest(
            f"a password has {MIN_PASSWORD} to {MAX_PASSWORD} characters", param="password"
        )
