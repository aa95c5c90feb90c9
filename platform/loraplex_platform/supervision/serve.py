"""`loraplex serve`: prepare what is missing, then keep the engine and the API alive."""

import asyncio
import fcntl
import http.client
import shutil
import signal
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from loraplex_platform.config import Settings
from loraplex_platform.db.migrations import upgrade
from loraplex_platform.supervision import demo
from loraplex_platform.supervision.base_model import prepare
from loraplex_platform.supervision.child import Child
from loraplex_platform.supervision.first_operator import EMAIL, first_link
from loraplex_platform.supervision.processes import (
    api_command,
    bind,
    engine_address,
    engine_command,
)

POLL_S = 0.2

console = Console(highlight=False, soft_wrap=True)


class HomeInUse(Exception):
    """Another `loraplex serve` runs in the same home; carries the folder."""

    def __init__(self, home: Path) -> None:
        super().__init__(f"another `loraplex serve` runs in {home}; stop it or set LORAPLEX_HOME")
        self.home = home


async def serve(settings: Settings) -> None:
    """Runs until SIGINT or SIGTERM; raises what keeps the processes from starting."""
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with only_server_of(settings.home):
        listener = bind(settings.host, settings.port)
        host, port = listener.getsockname()[:2]
        settings = replace(settings, port=port)
        with listener:
            model = await prepare(settings)
            address = engine_address(settings)
            engine = Child(engine_command(settings, model, address))
            alive = asyncio.create_task(engine.keep_alive())  # it loads meanwhile
            try:
                await asyncio.to_thread(upgrade, settings.database)
                origin = f"http://{_in_url(host)}:{port}"
                base_url = f"{origin}/v1"
                hints = await _first_start(settings, model, base_url)
                link = await first_link(settings, origin)
                _clear(settings.metrics_folder)
                command = api_command(settings, model, address, listener)
                apis = [Child(command) for _ in range(settings.workers)]
                await _supervise(alive, apis, _greet(host, port, base_url, hints, link))
            finally:
                await engine.stop()
                await asyncio.wait([alive])
            await alive


async def _first_start(settings: Settings, model: Path, base_url: str) -> list[str]:
    """Seed the demo once; returns the commands to try, which hold secrets."""
    if demo.access_file(settings).exists():
        demo.follow_address(settings, base_url)
        return []
    access = await demo.seed(settings, model, base_url)
    return [
        f"# {entry.tenant} {entry.says}\n{demo.curl(base_url, access[entry.tenant], entry.prompt)}"
        for entry in demo.demo_tenants()
    ]


def _clear(metrics_folder: Path | None) -> None:
    """What the processes of an earlier start counted is not ours."""
    if metrics_folder is not None:
        shutil.rmtree(metrics_folder, ignore_errors=True)
        metrics_folder.mkdir()


async def _supervise(
    engine: asyncio.Task[None], apis: Sequence[Child], greet: Coroutine[None, None, None]
) -> None:
    """Siblings: neither's end takes the other down. The API stops first, while answers still come."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    alive = [asyncio.create_task(api.keep_alive()) for api in apis]
    greeting = asyncio.create_task(greet)
    stop = asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait({engine, *alive, stop}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        greeting.cancel()
        stop.cancel()
        await asyncio.gather(*(api.stop() for api in apis))
    await asyncio.gather(*alive)


async def _greet(host: str, port: int, base_url: str, hints: list[str], link: str | None) -> None:
    """Say when requests are served, and what to try."""
    started_s = time.monotonic()
    with console.status("Starting engine and API"):
        while not await asyncio.to_thread(is_ready, host, port):  # noqa: ASYNC110 (another process)
            await asyncio.sleep(POLL_S)
    console.print(f"Ready after {time.monotonic() - started_s:.1f} s: {base_url}")
    if hints:
        console.print("\n\n".join(["Try:", *hints]), markup=False)
    else:
        console.print("New keys: loraplex keys create --tenant acme. Ctrl-C stops.", markup=False)
    if link is not None:
        console.print(f"Console, as {EMAIL}: set your password at {link}", markup=False)
    else:
        console.print(f"Console: {base_url.removesuffix('/v1')}/admin/", markup=False)


def is_ready(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(
        "127.0.0.1" if host == "0.0.0.0" else host, port, timeout=2
    )
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@contextmanager
def only_server_of(home: Path) -> Iterator[None]:
    with (home / "serve.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise HomeInUse(home) from error
        yield


def _in_url(host: str) -> str:
    if host == "0.0.0.0":
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
