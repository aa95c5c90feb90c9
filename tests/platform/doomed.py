"""A dispatcher, or a Celery worker, that is killed once at each point of a line's and a job's life.

`python -m tests.platform.doomed dispatcher|worker`: $DOOM_FOLDER remembers where it died.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from loraplex_platform.batches.closing import Closing
from loraplex_platform.batches.line_runner import LineRunner
from loraplex_platform.batches.queue import LineQueue
from loraplex_platform.config import load_settings
from loraplex_platform.files.service import FileService
from loraplex_platform.jobs.__main__ import work
from loraplex_platform.jobs.runtime import working

POINTS = (
    "after the claim",
    "during generation",
    "before the commit",
    "after the commit",
    "during finalise",
    "between rename and commit",
)


def die(point: str) -> None:
    """SIGKILL, if this point is the next one."""
    folder = Path(os.environ["DOOM_FOLDER"])
    if len(list(folder.iterdir())) == POINTS.index(point):
        (folder / point).touch()
        os.kill(os.getpid(), signal.SIGKILL)


def wrap(owner: type, name: str, around: Callable[..., Any]) -> None:
    inner = getattr(owner, name)

    def outer(*args: Any) -> Any:
        return around(inner, *args)

    setattr(owner, name, outer)


async def claim(inner: Callable[..., Any], *args: Any) -> Any:
    claimed = await inner(*args)
    if claimed:
        die("after the claim")
    return claimed


async def run(inner: Callable[..., Any], *args: Any) -> Any:
    running = asyncio.create_task(inner(*args))
    await asyncio.sleep(0.02)
    die("during generation")
    return await running


async def close(inner: Callable[..., Any], *args: Any) -> Any:
    die("before the commit")
    closed = await inner(*args)
    die("after the commit")
    return closed


def write(
    inner: Callable[..., Any], files: FileService, file_id: str, chunks: Iterable[bytes]
) -> Any:
    def interrupted() -> Iterator[bytes]:
        for chunk in chunks:
            yield chunk
            die("during finalise")

    return inner(files, file_id, interrupted())


async def publish(inner: Callable[..., Any], *args: Any) -> Any:
    die("between rename and commit")
    return await inner(*args)


async def dispatch() -> None:
    async with working(load_settings()):
        await asyncio.Event().wait()


def main() -> None:
    wrap(LineQueue, "claim", claim)
    wrap(LineRunner, "run", run)
    wrap(LineQueue, "close", close)
    wrap(FileService, "write", write)
    wrap(Closing, "_publish", publish)
    settings = load_settings()
    if sys.argv[1] == "worker":
        assert settings.redis_url is not None
        work(settings, settings.redis_url, 1)
    else:
        asyncio.run(dispatch())


if __name__ == "__main__":
    main()
