"""Names that attack: every page shows them as text, and as nothing else."""

from html.parser import HTMLParser
from urllib.parse import urlencode, urlsplit

import pytest
from markupsafe import escape
from tests.asked import asking
from tests.console_places import LOOKED_AT, furnish, path_of
from tests.console_stand import ConsoleStand
from tests.platform_stand import Seeded

from loraplex_admin import words

ATTACKS = {
    "markup": "<img src=x onerror=alert(1)>\"><script>alert(1)</script>' onfocus=alert(1) x='",
    "javascript": "javascript:alert(1)",
    "template": "{{7*7}}{% raw %}",
    "direction": "\u202egnp.exe\u200b",
    "long": "\U0001f600" * 2_500,  # 10 kB
}
INSIDE = [page for page in LOOKED_AT if page.permission]


class Seen(HTMLParser):
    """What a browser would make of a page: its elements, attributes and addresses."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.schemes: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag if tag != "script" or dict(attrs).get("src") else "inline script")
        for name, value in attrs:
            self.attributes.add(name)
            if name in ("href", "src", "action"):
                self.schemes.add(urlsplit(value or "").scheme)


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_attack_is_text_on_every_page(stand: ConsoleStand, keys: Seeded, attack: str) -> None:
    places = await furnish(stand, keys.acme.split("_")[1], attack)
    owner, as_text, shown = await stand.signed_in(), str(escape(words.plain(attack))), 0
    for page in INSIDE:
        answer = await owner.get(path_of(page, places))
        assert answer.status_code == 200, page.path
        check_harmless(answer.text, page.path)
        shown += as_text in answer.text
    assert shown >= 20


def check_harmless(text: str, where: str) -> None:
    seen = Seen(text)
    assert not seen.elements & {"img", "inline script"}, where
    assert not [name for name in seen.attributes if name.startswith("on")], where
    assert seen.schemes <= {""}, where
    assert not words.INVISIBLE.search(text), where


QUERY = ("q", "sort", "after", "done", "hours", "tenant_id", "key_id", "model", "status", "state")


@pytest.mark.slow
async def test_attack_in_an_address_is_text_on_every_page(
    stand: ConsoleStand, keys: Seeded
) -> None:
    places, owner = await furnish(stand, keys.acme.split("_")[1]), await stand.signed_in()
    query = urlencode(dict.fromkeys(QUERY, ATTACKS["markup"] + ATTACKS["direction"]))
    for page in INSIDE:
        answer = await owner.get(f"{path_of(page, places)}?{query}")
        assert answer.status_code in (200, 404), page.path  # there is no such tenant
        check_harmless(answer.text, page.path)


async def test_nul_never_comes_to_a_database(stand: ConsoleStand) -> None:
    """PostgreSQL takes none; SQLite would."""
    owner = await stand.signed_in()
    for path in ("/tenants/a%00b", "/tenants?q=a%00", "/requests?after=%00", "/search?q=%00"):
        assert (await owner.get(path)).status_code == 400, path
    assert (await owner.post("/tenants", name="a\0b")).status_code == 400
    with asking() as asked:
        await owner.get("/tenants?q=%00")
    assert asked == []  # not even who asks
