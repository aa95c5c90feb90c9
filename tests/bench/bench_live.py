"""`make bench-live`: what endless batch work costs live requests (about half an hour).

Live requests of workload w1 arrive at 0.25 a second, alone and beside flex requests that are kept in
flight, in turns. Writes out/bench_live.json, out/bench_live.md and out/bench_live.png.
"""

import argparse
import asyncio
import json
import os
import platform
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from live_client import Stream, client_of, keep_busy, serving, stream
from server_system import LoraplexServer
from workload import FOLDER, Request, load

OUT = Path(__file__).parents[2] / "out"
TURNS = 4  # of each kind, so that the machine's moods hit both alike
BATCH_STREAMS = 8
MODES = ("alone", "with batch")


def gaps(rate: float) -> list[float]:
    rows = map(json.loads, (FOLDER / "w1.jsonl").read_text().splitlines())
    return [row["gap"] / rate for row in rows]


async def turn(
    server: LoraplexServer, requests: list[Request], waits: list[float], batch: list[Stream] | None
) -> list[Stream]:
    """One turn's live streams; `batch` collects the batch streams that end meanwhile."""
    async with client_of(server) as client:
        filler = None
        if batch is not None:
            work = keep_busy(client, server, load("w1", shift=1), "flex", BATCH_STREAMS, batch)
            filler = asyncio.create_task(work)
            await asyncio.sleep(10)  # until the batch work is under way
        tasks = []
        for request, wait_s in zip(requests, waits, strict=True):
            await asyncio.sleep(wait_s)
            tasks.append(asyncio.create_task(stream(client, server, request, "priority")))
        seen = await asyncio.gather(*tasks)
        if filler is not None:
            filler.cancel()
            await asyncio.gather(filler, return_exceptions=True)
        return seen


async def run(server: LoraplexServer, count: int, rate: float) -> dict[str, list[Stream]]:
    workload, waits = load("w1"), gaps(rate)
    seen: dict[str, list[Stream]] = {mode: [] for mode in (*MODES, "batch")}
    per_turn = -(-count // TURNS)
    for number in range(TURNS):
        for mode in MODES if number % 2 == 0 else MODES[::-1]:
            picked = [(number * per_turn + i) % len(workload) for i in range(per_turn)]
            requests = [
                workload[i]._replace(
                    prompt_ids=[3 + len(seen[mode]) + j, *workload[i].prompt_ids[1:]]
                )
                for j, i in enumerate(picked)
            ]
            batch = seen["batch"] if mode == "with batch" else None
            seen[mode] += await turn(server, requests, [waits[i] for i in picked], batch)
            print(f"{time.strftime('%H:%M:%S')} {mode}: {len(seen[mode])} live requests")
    return seen


def quantiles(values: list[float]) -> dict[str, float]:
    return {f"p{q}": float(np.percentile(values, q)) for q in (50, 95, 99)}


def report(seen: dict[str, list[Stream]], rate: float) -> str:
    figures = {
        mode: {
            "ttft_s": quantiles([s.ttft_s for s in seen[mode]]),
            "gap_s": quantiles([gap for s in seen[mode] for gap in s.gaps_s]),
        }
        for mode in MODES
    }
    (OUT / "bench_live.json").write_text(json.dumps(figures, indent=2))
    alone, beside = figures["alone"], figures["with batch"]
    head = f"{len(seen['alone'])} live requests each, {rate}/s, {len(seen['batch'])} batch requests ended"
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    lines = [
        f"{head}; {machine}; {time.strftime('%F')}",
        "",
        "| | alone | with batch | ratio |",
        "|---|---|---|---|",
    ]
    for name in ("ttft_s", "gap_s"):
        for q, value in alone[name].items():
            ratio = beside[name][q] / value
            lines.append(f"| {name} {q} | {value:.3f} | {beside[name][q]:.3f} | {ratio:.2f} |")
    step_s = alone["gap_s"]["p50"]
    later_s = beside["ttft_s"]["p50"] - alone["ttft_s"]["p50"]
    is_met = beside["ttft_s"]["p95"] <= 1.2 * alone["ttft_s"]["p95"] and later_s <= step_s
    lines += [
        "",
        f"TTFT p95 within 1.2, p50 within one step ({step_s:.3f} s): {'met' if is_met else 'missed'}",
    ]
    return "\n".join(lines) + "\n"


def draw(seen: dict[str, list[Stream]]) -> None:
    figure, axes = plt.subplots(figsize=(7, 4))
    for mode in MODES:
        values = sorted(s.ttft_s for s in seen[mode])
        axes.step(values, np.linspace(0, 1, len(values)), label=mode)
    axes.set(xlabel="time to first token (s)", ylabel="share of live requests", xscale="log")
    axes.legend()
    figure.savefig(OUT / "bench_live.png", dpi=120, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200, help="live requests of each kind")
    parser.add_argument("--rate", type=float, default=0.25, help="live requests a second")
    options = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    with serving(OUT / "bench-adapters") as server:
        seen = asyncio.run(run(server, options.requests, options.rate))
    text = report(seen, options.rate)
    (OUT / "bench_live.md").write_text(text)
    draw(seen)
    print(text)


if __name__ == "__main__":
    main()
