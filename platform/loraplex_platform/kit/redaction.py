"""Keys where no key belongs: pasted into an address, a name, a message."""

import re

KEY_FORM = re.compile(r"(lpx|lpxadmin|lpxlink)_([A-Za-z0-9]{16})_([A-Za-z0-9]{43})")


def without_keys(text: str) -> str:
    """The text with nothing left of a key but its realm."""
    return KEY_FORM.sub(r"\1_…", text)
