"""A child process that is kept alive: started again, ever more patiently, until it is told to stop."""

import asyncio
import ctypes
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

log = structlog.get_logger(__name__)

FIRST_DELAY_S = 0.2
LONGEST_DELAY_S = 10.0
SETTLED_S = 30.0  # a child that lived so long starts again without delay
CANNOT_START = 78  # EX_CONFIG: what a child returns when another try would not help

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


class ChildCannotStart(Exception):
    """A child said that it cannot run as it is configured; carries its name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the {name} process cannot start; it says why above")
        self.name = name


@dataclass(frozen=True, slots=True)
class Command:
    """How a child is started, and how long it may take to end."""

    name: str
    args: Sequence[str]  # after the interpreter
    environment: Mapping[str, str]  # all of it
    pass_fds: tuple[int, ...] = ()
    grace_s: float = 15.0


class Child:
    """One supervised process."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.restarts = 0
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def keep_alive(self) -> None:
        """Returns once `stop` was called and the child has ended; raises ChildCannotStart."""
        delay_s = FIRST_DELAY_S
        while not self._stopping.is_set():
            started_s = time.monotonic()
            code = await self._run_once()
            if self._stopping.is_set():
                return
            if code == CANNOT_START:
                raise ChildCannotStart(self.command.name)
            if time.monotonic() - started_s >= SETTLED_S:
                delay_s = FIRST_DELAY_S
            log.error("process ended", process=self.command.name, code=code, restart_in_s=delay_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_s)
            delay_s = min(2 * delay_s, LONGEST_DELAY_S)
            self.restarts += 1

    async def stop(self) -> None:
        """Ask the child to end, and make it when it takes longer than its grace."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), self.command.grace_s)
        except TimeoutError:
            log.error("process does not end; killed", process=self.command.name)
            process.kill()
            await process.wait()

    async def _run_once(self) -> int:
        options: dict[str, Any] = {"start_new_session": True}  # Ctrl-C is the parent's to hear
        if sys.platform == "linux":
            options["preexec_fn"] = _die_with_parent
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *self.command.args,
            env=self.command.environment,
            pass_fds=self.command.pass_fds,
            stdin=asyncio.subprocess.DEVNULL,
            **options,
        )
        log.info("process started", process=self.command.name, pid=self._process.pid)
        if self._stopping.is_set():  # it was told while this one was being started
            self._process.terminate()
        return await self._process.wait()


def _die_with_parent() -> None:
    """Runs in the child before exec: a parent that is killed leaves no orphans."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
