"""Secrets that tests make, and whatever others may read: the ones must not be in the others."""

import base64
import fcntl
import json
import logging
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send
from tests.services import Rows

from loraplex_platform.auth import keys
from loraplex_platform.kit.redaction import KEY_FORM
from loraplex_platform.middleware import RequestContext
from loraplex_platform.openai.order import Caller, Order
from loraplex_platform.openai.schemas import ChatRequest, CompletionRequest
from loraplex_platform.openai.service import InferenceService
from loraplex_platform.people.passwords import Passwords
from loraplex_platform.people.sessions import SessionService

KEY = re.compile(KEY_FORM.pattern.encode())  # as a whole, whoever made it
SHORTEST = 10  # a shorter secret would be found in innocent text
FEWEST = 5  # different characters; «xxxx…» is nobody's prompt
UNMISTAKABLE = 16  # characters that nobody else says by chance
SOUGHT = 200  # of one test; the 10,000 guesses of another are nobody's secrets
ONCE = {"POST"}  # shows a secret to whoever makes it, if all goes well
FORM_PAGES = {"/admin/link"}  # shows its visitor the link that they sent
READ_BACK = "/content"  # of a file: the prompts that its owner sent
HIDDEN_HEADERS = {b"set-cookie"}


@dataclass(slots=True)
class Watch:
    """What one test made and showed; and, in a folder of all the run's workers, what every test did."""

    record: Path  # beside those of the others
    made: set[str] = field(default_factory=set)
    shown: list[tuple[str, bytes]] = field(default_factory=list)  # where, and what
    prompts: set[str] = field(default_factory=set)  # which of the secrets are no more than that
    kept: set[str] = field(default_factory=set)  # prompts that a tenant had us keep
    ever_made: set[str] = field(default_factory=set)
    _recorded: set[int] = field(default_factory=set)

    def make(self, secret: str) -> None:
        self.made.update(line for line in secret.splitlines() if len(line) >= SHORTEST)

    def prompt(self, text: str, *, may_be_kept: bool) -> None:
        for line in text.splitlines():
            if len(set(line)) >= FEWEST:
                self.make(line)
                (self.kept if may_be_kept else self.prompts).add(line)

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
        """Where somebody may read a secret of this test, or any key."""
        return list(leaks_in(self.shown, sorted(self.made - self.kept)[:SOUGHT], self.prompts))

    def leaks_of_run(self) -> list[str]:
        """Where somebody may read a secret of another test, of all workers that have ended.

        The last one searches what each of them showed for what each of them made.
        """
        with alone_in(self.record.parent) as folder:
            told = {name: sorted(getattr(self, name)) for name in ("ever_made", "prompts", "kept")}
            self.record.with_suffix(".made").write_text(json.dumps(told))
            ended = list(folder.glob("*.made"))
            made = [json.loads(path.read_text()) for path in ended]
            kept, prompts, ever = (
                {text for each in made for text in each[name]}
                for name in ("kept", "prompts", "ever_made")
            )
            lines = lines_with(ever - kept, *(path.with_suffix(".shown") for path in ended))
        shown = [(where.decode(), text) for where, _, text in (x.partition(b"\t") for x in lines)]
        return list(leaks_in(shown, sorted(ever - kept), prompts))

    def put_away(self) -> None:
        """The next test begins; each line is recorded once."""
        with self.record.open("ab") as record:
            for where, text in self.shown:
                for line in text.split(b"\n"):
                    mark = hash((where.endswith(READ_BACK), line))
                    if mark not in self._recorded:
                        self._recorded.add(mark)
                        record.write(where.encode("unicode_escape") + b"\t" + line + b"\n")
        self.ever_made |= {secret for secret in self.made if len(secret) >= UNMISTAKABLE}
        self.clear()

    def clear(self) -> None:
        self.made.clear()
        self.shown.clear()


def leaks_in(
    shown: Iterable[tuple[str, bytes]], sought: list[str], prompts: set[str]
) -> Iterator[str]:
    """Any key, and any of these secrets; a prompt may be read in the file that its owner sent."""
    written = [(secret.encode(), secret in prompts) for secret in sought]
    for where, text in shown:
        yield from (f"{where}: {match[0].decode()}" for match in KEY.finditer(text))
        for secret, is_prompt in written:
            if secret in text and not (is_prompt and where.endswith(READ_BACK)):
                yield f"{where}: {secret.decode()}"


def lines_with(sought: Iterable[str], *records: Path) -> list[bytes]:
    """Their lines that hold any of these texts: grep looks for thousands of them at once."""
    with NamedTemporaryFile("w", suffix=".sought") as texts:
        texts.writelines(f"{text}\n" for text in sought)
        texts.flush()
        command = ["grep", "-ahFf", texts.name, *map(str, records)]
        environment = {"PATH": os.defpath, "LC_ALL": "C"}
        found = subprocess.run(
            command, env=environment, capture_output=True, stdin=subprocess.DEVNULL
        )
    assert found.returncode in (0, 1), found.stderr.decode()
    return found.stdout.split(b"\n")[:-1]


@contextmanager
def alone_in(folder: Path) -> Iterator[Path]:
    """No other worker of the run is in it meanwhile."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


@contextmanager
def record_of_run(base: Path) -> Iterator[Path]:
    """A file in a folder that is the run's; `base` is this worker's. The last to leave empties it."""
    num_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shown"
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        yield folder / f"{base.name}.shown"
    finally:
        (folder / f"{base.name}.left").touch()
        if len(list(folder.glob("*.left"))) == num_workers:
            shutil.rmtree(folder, ignore_errors=True)  # two may be the last


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Tells it of keys, links, sessions, passwords, prompts and webhooks' secrets; of answers and logs."""
    handler = Listener(watch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "_random", _told(keys._random, watch, lambda made: len(made) == 43))
        patch.setattr(SessionService, "_open", _told_later(SessionService._open, watch))
        patch.setattr(secrets, "token_bytes", _told(secrets.token_bytes, watch))
        for name in ("hash", "matches"):
            patch.setattr(Passwords, name, _hearing(getattr(Passwords, name), watch))
        patch.setattr(InferenceService, "_order", _overhearing(InferenceService._order, watch))
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


def _overhearing(understand: Callable[..., Awaitable[Order]], watch: Watch) -> Callable[..., Any]:
    async def overhearing(
        service: InferenceService,
        caller: Caller,
        request: ChatRequest | CompletionRequest,
        encode: Any,
    ) -> Order:
        order = await understand(service, caller, request, encode)
        for text in _texts_of(request):
            watch.prompt(text, may_be_kept=order.target.stores_prompts)
        return order

    return overhearing


def _texts_of(request: ChatRequest | CompletionRequest) -> list[str]:
    if isinstance(request, ChatRequest):
        return [turn["content"] for turn in request.turns()]
    given = request.prompt if isinstance(request.prompt, list) else [request.prompt]
    return [text for text in given if isinstance(text, str)]


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
