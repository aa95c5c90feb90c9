"""Batch jobs on an engine of fixed rate: the part of the rate that is used, and memory by size.

`PYTHONPATH=. python tests/bench/bench_batches.py [--rate 200] [--lines 1000 10000]`: each size in a process
of its own, SQLite, one in-process dispatcher. Prints lines a second, the peak of resident memory, and the
processor time of a line, from the upload to the end of its job: a busy machine lengthens seconds, but
hardly that.
"""

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import NamedTuple

from tests.platform.batch_stand import jsonl, line
from tests.platform_stand import BASE, LETTERS, seed, tiny_model

from loraplex_engine.fake import FakeEngine
from loraplex_engine.messages import Finished, Generate, TokenEvent
from loraplex_platform.app import create_app
from loraplex_platform.batches.schemas import FINAL, CreateBatch
from loraplex_platform.config import Settings
from loraplex_platform.db.migrations import upgrade
from loraplex_platform.files.schemas import UploadForm
from loraplex_platform.observability.logging import configure_logging
from loraplex_platform.openai.served_model import ServedModel


class FixedRateEngine(FakeEngine):
    """Answers `rate` requests a second, however many wait; a moment nobody used is lost."""

    def __init__(self, rate: float) -> None:
        super().__init__(vocab=LETTERS, text_of=chr)
        self._period_s = 1 / rate
        self._next_s = 0.0
        self.first_s: float | None = None
        self.last_s = 0.0

    async def generate(self, request: Generate) -> AsyncGenerator[TokenEvent | Finished, None]:
        now_s = time.monotonic()
        slot_s = max(now_s, self._next_s)
        self._next_s = slot_s + self._period_s
        await asyncio.sleep(slot_s - now_s)
        async for event in super().generate(request):
            yield event
        self.requests.clear()  # the twin remembers for tests; here that would be its memory
        self._prefixes.clear()
        self.first_s, self.last_s = self.first_s or slot_s, time.monotonic()


class Figures(NamedTuple):
    lines: int
    lines_per_s: float
    used: float  # part of the engine's rate
    peak_mib: float
    cpu_ms: float  # of a line


async def measure(lines: int, rate: float, home: Path) -> Figures:
    settings = Settings(home=home, batch_tick_s=0.5)
    upgrade(settings.database)
    keys = await seed(settings)
    engine = FixedRateEngine(rate)
    app = create_app(settings, engine, ServedModel.load(tiny_model(home / "tiny"), BASE))
    async with app.router.lifespan_context(app):
        principal = await app.state.authenticator.authenticate(keys.acme)
        write_input(home / "in.jsonl", lines)
        started_s = time.process_time()
        form = UploadForm(purpose="batch")
        with (home / "in.jsonl").open("rb") as content:
            file = await app.state.files.create(principal, form, "a.jsonl", content)
        order = CreateBatch(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        batch = await app.state.batches.create(principal, order)
        while batch.status not in FINAL:
            await asyncio.sleep(0.2)
            batch = await app.state.batches.get(principal, batch.id)
        cpu_ms = (time.process_time() - started_s) / lines * 1e3
    assert batch.request_counts.completed == lines
    assert engine.first_s is not None
    lines_per_s = (lines - 1) / (engine.last_s - engine.first_s)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Figures(lines, lines_per_s, lines_per_s / rate, peak_mib, cpu_ms)


def write_input(path: Path, lines: int) -> None:
    """Line by line: the file's memory is not to be the job's."""
    with path.open("wb") as file:
        for i in range(lines):
            file.write(jsonl(line(str(i), max_tokens=1)))


def measured(lines: int, rate: float) -> Figures:
    """In a process of its own, because a peak cannot be forgotten."""
    command = [sys.executable, __file__, "--child", "--rate", str(rate), "--lines", str(lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Figures(*json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--lines", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--child", action="store_true")
    args = parser.parse_args()
    if args.child:
        configure_logging("warning")
        with tempfile.TemporaryDirectory() as home:
            figures = asyncio.run(measure(args.lines[0], args.rate, Path(home)))
        print(json.dumps(figures))
        return
    peaks = []
    for lines in args.lines:
        figures = measured(lines, args.rate)
        peaks.append(figures.peak_mib)
        print(
            f"{figures.lines:6} lines  {figures.lines_per_s:6.1f}/s  "
            f"{figures.used:6.1%} of the engine  {figures.peak_mib:6.1f} MiB  "
            f"{figures.cpu_ms:5.2f} ms of CPU a line"
        )
    print(f"peak memory of the last over the first: {peaks[-1] / peaks[0]:.3f}")


if __name__ == "__main__":
    main()
