"""`make bench-neighbour`: two equal tenants, one with ten times the streams, both backlogged (five minutes).

Both send the same mix, so that output tokens stand for service; the shares should be equal within ten
per cent. Writes out/bench_neighbour.json.
"""

import argparse
import asyncio
import json
import time
from pathlib import Path

from live_client import Stream, client_of, keep_busy, serving
from server_system import TENANT, LoraplexServer
from workload import load

OUT = Path(__file__).parents[2] / "out"
QUIET = "quiet"
STREAMS = {QUIET: 20, TENANT: 200}


async def run(server: LoraplexServer, keys: dict[str, str], seconds: float) -> dict[str, int]:
    """Tokens that each tenant's streams got between a warm-up and the end."""
    workload = [request._replace(adapter=None) for request in load("w1")]
    begun: dict[str, list[Stream]] = {tenant: [] for tenant in STREAMS}

    async def backlog(tenant: str) -> None:
        async with client_of(server, keys[tenant]) as client:
            await keep_busy(client, server, workload, "default", STREAMS[tenant], begun[tenant])

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(backlog(tenant)) for tenant in STREAMS]
        await asyncio.sleep(seconds / 5)
        from_s = time.perf_counter()
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
    return {
        tenant: sum(time_s >= from_s for stream in streams for time_s in stream.token_s)
        for tenant, streams in begun.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=240.0)
    options = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    with serving(OUT / "bench-adapters") as server:
        keys = {TENANT: server.key, QUIET: server.add_tenant(QUIET)}
        served = asyncio.run(run(server, keys, options.seconds))
    total = sum(served.values())
    shares = {tenant: tokens / total for tenant, tokens in served.items()}
    (OUT / "bench_neighbour.json").write_text(
        json.dumps({"output_tokens": served, "shares": shares})
    )
    print(served, shares)
    is_fair = abs(shares[QUIET] - 0.5) <= 0.05
    print("shares within 10 %:", "met" if is_fair else "missed")


if __name__ == "__main__":
    main()
