"""The way into the console of a new installation: a one-time link that `serve` prints."""

from loraplex_platform.config import Settings
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import SystemClock
from loraplex_platform.kit.principal import COMMAND_LINE
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.people.passwords import Passwords
from loraplex_platform.people.service import PeopleService

EMAIL = "owner@localhost"


async def first_link(settings: Settings, origin: str) -> str | None:
    """A new link while nobody of the staff ever set a password; None once somebody did."""
    database = Database(settings.database)
    secrets = Secrets.load_or_create(settings.home)
    people = PeopleService(database, secrets, Passwords(), SystemClock())
    try:
        staff = await people.page(COMMAND_LINE, None, limit=100)
        if any(person.state != "invited" for person in staff):
            return None
        waiting = next((person for person in staff if person.email == EMAIL), None)
        if waiting is None:
            token = (await people.invite(EMAIL, "owner")).token
        else:
            token = (await people.reset(COMMAND_LINE, None, waiting.id)).token
    finally:
        await database.close()
    return f"{origin}/admin/link#{token}"
