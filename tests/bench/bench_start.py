"""From `loraplex serve` to ready, and what the engine holds in memory once its pool is full of KV.

python tests/bench/bench_start.py        # the model converted, caches warm: run it twice if they are not

Prints seconds to a 200 of /readyz for each start, then fills the pool with prompts to all sixteen
adapters and prints the resident memory of the engine's process, before and after, and what the pool holds.
"""

import argparse
import os
import re
import statistics
import tempfile
from pathlib import Path

import psutil
from random_adapters import make_adapters
from server_system import LoraplexServer
from workload import Request

PROMPT_TOKENS, PROMPTS = 512, 33  # a little more than 16,384 tokens, of which none is shared


def engine_of(server: LoraplexServer) -> psutil.Process:
    children = psutil.Process(server.process.pid).children(recursive=True)
    [engine] = [child for child in children if "loraplex_engine" in child.cmdline()]
    return engine


def rss_mb(process: psutil.Process) -> float:
    return float(process.memory_info().rss / 1e6)


def pool_tokens(server: LoraplexServer) -> int:
    """What the engine said of its pool when it began to serve."""
    log = Path(server.log.name).read_text()
    said = re.search(r"(\d+) blocks of (\d+) tokens", log)
    assert said is not None, log
    return int(said[1]) * int(said[2])


def prompts(adapters: Path) -> list[Request]:
    names = sorted(folder.name for folder in adapters.iterdir())
    return [
        Request(
            names[i % len(names)],
            [(7919 * i + 31 * at) % 40_000 + 10 for at in range(PROMPT_TOKENS)],
            1,
        )
        for i in range(PROMPTS)
    ]


def main() -> None:
    cache = Path(os.environ.get("LORAPLEX_CACHE", Path.home() / ".cache" / "loraplex"))
    out = Path(__file__).parents[2] / "out"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=cache / "models" / "smollm2-135m-instruct")
    parser.add_argument("--adapters", type=Path, default=out / "bench-adapters")
    parser.add_argument("--starts", type=int, default=5)
    args = parser.parse_args()
    make_adapters(args.model, args.adapters)
    seconds = []
    with tempfile.TemporaryDirectory() as nobody:  # starts are timed without adapters to add
        for _ in range(args.starts):
            server = LoraplexServer(args.model, Path(nobody))
            seconds.append(server.ready_s)
            server.close()
    listed = ", ".join(f"{s:.1f}" for s in seconds)
    print(f"load {os.getloadavg()[0]:.1f}; start to ready: {listed} s")
    print(f"median {statistics.median(seconds):.1f} s")
    server = LoraplexServer(args.model, args.adapters)
    try:
        engine = engine_of(server)
        print(f"pool of {pool_tokens(server)} tokens; engine after start: {rss_mb(engine):.0f} MB")
        cached = [t.num_cached for t in server.serve(prompts(args.adapters))]
        assert max(cached) == 0, "the prompts were to fill the pool"
        print(f"after {PROMPTS * PROMPT_TOKENS} tokens of prompts: {rss_mb(engine):.0f} MB")
    finally:
        server.close()


if __name__ == "__main__":
    main()
