"""Secrets that tests make, and whatever others may read: the ones must not be in the others."""

import base64
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send
from tests.services import Rows

from loraplex_platform.auth import keys
from loraplex_platform.kit.redaction import KEY_FORM
from loraplex_platform.middleware import RequestContext
from loraplex_platform.people.passwords import Passwords
from loraplex_platform.people.sessions import SessionService

KEY = re.compile(KEY_FORM.pattern.encode())  # as a whole, whoever made it
SHORTEST = 10  # a shorter password would be found in innocent text
SOUGHT = 200  # of one test; the 10,000 guesses of another are nobody's secrets
ONCE = {"POST"}  # shows a secret to whoever makes it, if all goes well
FORM_PAGES = {"/admin/link"}  # shows its visitor the link that they sent
HIDDEN_HEADERS = {b"set-cookie"}


@dataclass(slots=True)
class Watch:
    """What one test made and showed."""

    made: set[str] = field(default_factory=set)
    shown: list[tuple[str, bytes]] = field(default_factory=list)  # where, and what

    def make(self, secret: str) -> None:
        if len(secret) >= SHORTEST:
            self.made.add(secret)

    def show(self, where: str, text: str | bytes) -> None:
        self.shown.append((where, text if isinstance(text, bytes) else text.encode()))

    def show_files(self, home: Path) -> None:
        """The database with its log, and what lies in the spool."""
        for path in (*home.glob("*.sqlite3*"), *home.glob("spool/*")):
            self.show(path.name, path.read_bytes())

    def show_rows(self, rows: Rows) -> None:
        for table, lines in rows.items():
            self.show(f"table {table}", lines)

    def leaks(self) -> list[str]:
        """Where somebody may read a secret."""
        sought = [secret.encode() for secret in sorted(self.made)[:SOUGHT]]
        return [
            f"{where}: {found.decode()}"
            for where, text in self.shown
            for found in (
                *(match[0] for match in KEY.finditer(text)),
                *(secret for secret in sought if secret in text),
            )
        ]

    def clear(self) -> None:
        self.made.clear()
        self.shown.clear()


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Tells it of keys, links, sessions, passwords and webhooks' secrets; of answers and logs."""
    handler = Listener(watch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "_random", _told(keys._random, watch, lambda made: len(made) == 43))
        patch.setattr(SessionService, "_open", _told_later(SessionService._open, watch))
        patch.setattr(secrets, "token_bytes", _told(secrets.token_bytes, watch))
        for name in ("hash", "matches"):
            patch.setattr(Passwords, name, _hearing(getattr(Passwords, name), watch))
        patch.setattr(RequestContext, "__call__", _seen(RequestContext.__call__, watch))
        logging.getLogger().addHandler(handler)
        yield
        logging.getLogger().removeHandler(handler)


class Listener(logging.Handler):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch
        self.setFormatter(logging.Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        self._watch.show("log", self.format(record))


def _told(
    make: Callable[..., Any], watch: Watch, is_secret: Callable[[Any], bool] = lambda _: True
) -> Callable[..., Any]:
    def told(*args: Any) -> Any:
        made = make(*args)
        if is_secret(made):
            watch.make(made if isinstance(made, str) else base64.b64encode(made).decode())
        return made

    return told


def _told_later(make: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    async def told(*args: Any) -> Any:
        made = await make(*args)
        watch.make(made)
        return made

    return told


def _hearing(judge: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    async def hearing(passwords: Passwords, password: str, *rest: Any) -> Any:
        watch.make(password)
        return await judge(passwords, password, *rest)

    return hearing


def _seen(call: Callable[..., Awaitable[None]], watch: Watch) -> Callable[..., Any]:
    """All answers but those that show a new secret to whoever asked for it."""

    async def seen(context: RequestContext, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await call(context, scope, receive, send)
        where, is_read = f"{scope['method']} {scope['path']}", True

        async def show(message: Message) -> None:
            nonlocal is_read
            if message["type"] == "http.response.start":
                is_private = scope["method"] in ONCE and message["status"] < 300
                is_read = not is_private and scope["path"] not in FORM_PAGES
                headers = [h for h in message["headers"] if h[0].lower() not in HIDDEN_HEADERS]
                watch.show(where, b"\n".join(value for _, value in headers))
            if is_read:
                watch.show(where, message.get("body", b""))
            await send(message)

        return await call(context, scope, receive, show)

    return seen
