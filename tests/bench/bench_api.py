"""What streams over HTTP cost the API: processor time of its process, before an engine that costs little.

All streams begin together and get their tokens together, as a step of an engine gives them; then one ends at
each step. The same with longer streams tells what a token costs from what a request costs.

    PYTHONPATH=. python tests/bench/bench_api.py --streams 64 --rounds 5
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
from http_system import Body, HttpServer, free_port
from tests.engine import fake_core
from tests.platform_stand import seed, tiny_model, token_of
from workload import Request

from loraplex_platform.config import Settings
from loraplex_platform.db.migrations import upgrade

MODEL = "tiny"
SHORT, LONG = 1, 32  # tokens of the first stream that ends
PROMPT = [token_of("a")] * 4
IDLE_S = 5.0


class ApiServer(HttpServer):
    """`loraplex_platform.api` in a home of its own."""

    name = "api"

    def __init__(self, home: Path, engine_address: str) -> None:
        port = free_port()
        settings = Settings(home=home)
        upgrade(settings.database)
        own = {
            "HOME": str(home),
            "PORT": str(port),
            "MODEL": str(tiny_model(home / MODEL)),
            "SERVED_MODEL_NAME": MODEL,
            "ENGINE_ADDRESS": engine_address,
        }
        super().__init__(
            [sys.executable, "-m", "loraplex_platform.api"],
            {**os.environ, **{f"LORAPLEX_{name}": value for name, value in own.items()}},
            port=port,
            log=home / "api.log",
            health="/readyz",
        )
        key = asyncio.run(seed(settings)).acme
        self.headers = {"authorization": f"Bearer {key}"}

    def body(self, request: Request) -> Body:
        return {
            "model": MODEL,
            "prompt": request.prompt_ids,
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "return_token_ids": True,
        }

    @property
    def cpu_s(self) -> float:
        times = psutil.Process(self.process.pid).cpu_times()
        return times.user + times.system


class Cost(NamedTuple):
    """Milliseconds of processor time."""

    token: float
    request: float
    all_of_a_token: float  # of the longer streams, with their requests
    idle_second: float


@contextmanager
def counting_engine(address: str, step_s: float) -> Iterator[None]:
    command = [sys.executable, fake_core.__file__, address, str(step_s)]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def measure(server: ApiServer, streams: int) -> Cost:
    short_ms, long_ms = (spent_ms(server, range(first, first + streams)) for first in (SHORT, LONG))
    token = (long_ms - short_ms) / (LONG - SHORT) / streams
    num_tokens = sum(range(LONG, LONG + streams))
    request = (long_ms - token * num_tokens) / streams
    began_s = server.cpu_s
    time.sleep(IDLE_S)
    return Cost(token, request, long_ms / num_tokens, 1000 * (server.cpu_s - began_s) / IDLE_S)


def spent_ms(server: ApiServer, lengths: range) -> float:
    began_s = server.cpu_s
    timelines = server.serve([Request(None, PROMPT, length) for length in lengths])
    assert [each.num_tokens for each in timelines] == list(lengths)
    return 1000 * (server.cpu_s - began_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--step-ms", type=float, default=100.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="loraplex-bench-") as folder:
        address = f"ipc://{folder}/engine.sock"
        with counting_engine(address, given.step_ms / 1000):
            server = ApiServer(Path(folder), address)
            try:
                measure(server, given.streams)  # fills caches
                costs = [measure(server, given.streams) for _ in range(given.rounds)]
            finally:
                server.close()
    for name in Cost._fields:
        values = [getattr(cost, name) for cost in costs]
        told = ", ".join(f"{value:.3f}" for value in values)
        print(f"{name}: {statistics.median(values):.3f} ms ({told})")


if __name__ == "__main__":
    main()
