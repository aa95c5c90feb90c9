"""`make bench-live`: what endless batch work costs live requests (about 35 minutes).

Live requests of workload w1 arrive at 0.25 a second: alone, beside flex requests that are kept in
flight, and beside a Batch API job, in turns; before the latter the job runs by itself for a while.
Writes out/bench_live.{json,csv,md,png}.
"""

import argparse
import asyncio
import csv
import json
import os
import platform
import sqlite3
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from endless_job import EndlessJob, Window, endless_job
from live_client import Stream, client_of, keep_busy, serving, stream
from openai import AsyncOpenAI
from server_system import LoraplexServer
from workload import FOLDER, Request, load

OUT = Path(__file__).parents[2] / "out"
TURNS = 4  # of each kind, so that the machine's moods hit all alike
BATCH_STREAMS = 8
UNDER_WAY_S = 10.0
MODES = ("alone", "beside flex", "beside a job")


@dataclass
class Seen:
    """What all turns together saw."""

    live: dict[str, list[Stream]] = field(default_factory=lambda: {mode: [] for mode in MODES})
    flex: list[Stream] = field(default_factory=list)
    alone_s: float = 0.0  # of the turns of live requests alone
    alone_step_s: float = 0.0  # what they took of it
    job_alone: Window = field(default_factory=Window)
    job_beside: Window = field(default_factory=Window)


@dataclass(frozen=True)
class Plan:
    """How many live requests of each kind, at which rate, and how long the job runs by itself."""

    requests: int
    job_requests: int
    rate: float
    job_s: float

    def per_turn(self, mode: str) -> int:
        return -(-(self.job_requests if mode == "beside a job" else self.requests) // TURNS)


def arrivals(number: int, count: int, rate: float) -> list[tuple[Request, float]]:
    """The turn's part of w1, and the wait before each: at exactly this rate on average."""
    workload = load("w1")
    rows = map(json.loads, (FOLDER / "w1.jsonl").read_text().splitlines())
    gaps = [row["gap"] for row in rows]
    picked = [(number * count + i) % len(workload) for i in range(count)]
    mean = statistics.mean(gaps[i] for i in picked)
    return [(workload[i], gaps[i] / mean / rate) for i in picked]


async def live(
    client: AsyncOpenAI,
    server: LoraplexServer,
    seen: list[Stream],
    number: int,
    plan: Plan,
    count: int,
) -> None:
    tasks = []
    for j, (request, wait_s) in enumerate(arrivals(number, count, plan.rate)):
        fresh = [3 + len(seen) + j, *request.prompt_ids[1:]]  # in no prefix cache yet
        await asyncio.sleep(wait_s)
        sent = request._replace(prompt_ids=fresh)
        tasks.append(asyncio.create_task(stream(client, server, sent, "priority")))
    seen += await asyncio.gather(*tasks)


@asynccontextmanager
async def flex_work(
    client: AsyncOpenAI, server: LoraplexServer, begun: list[Stream]
) -> AsyncIterator[None]:
    work = keep_busy(client, server, load("w1", shift=1), "flex", BATCH_STREAMS, begun)
    filler = asyncio.create_task(work)
    await asyncio.sleep(UNDER_WAY_S)
    try:
        yield
    finally:
        filler.cancel()
        with suppress(asyncio.CancelledError):
            await filler  # raises what went wrong meanwhile


async def turn(server: LoraplexServer, mode: str, number: int, plan: Plan, seen: Seen) -> None:
    streams, count = seen.live[mode], plan.per_turn(mode)
    async with client_of(server) as client:
        if mode == "alone":
            started_s, used_s = time.perf_counter(), live_step_s(server)
            await live(client, server, streams, number, plan, count)
            seen.alone_s += time.perf_counter() - started_s
            seen.alone_step_s += live_step_s(server) - used_s
        elif mode == "beside flex":
            async with flex_work(client, server, seen.flex):
                await live(client, server, streams, number, plan, count)
        else:
            async with endless_job(client, server, load("w1", shift=2), number) as job:
                await beside_job(job, server, streams, number, plan, seen)


async def beside_job(
    job: EndlessJob,
    server: LoraplexServer,
    streams: list[Stream],
    number: int,
    plan: Plan,
    seen: Seen,
) -> None:
    await job.warm_up()
    async with job.watched(seen.job_alone):
        await asyncio.sleep(plan.job_s / TURNS)
    async with job.watched(seen.job_beside):
        count = plan.per_turn("beside a job")
        await live(job.client, server, streams, number, plan, count)


def live_step_s(server: LoraplexServer) -> float:
    """Seconds of steps that live requests took so far, as their usage events say."""
    path = Path(server.home.name) / "loraplex.sqlite3"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        query = "SELECT coalesce(sum(engine_s), 0) FROM usage_event WHERE tier = 'interactive'"
        return float(database.execute(query).fetchone()[0])


async def run(server: LoraplexServer, plan: Plan, seen: Seen) -> None:
    for number in range(TURNS):
        for mode in MODES if number % 2 == 0 else MODES[::-1]:
            await turn(server, mode, number, plan, seen)
            print(f"{time.strftime('%H:%M:%S')} {mode}: {len(seen.live[mode])} live requests")


def quantiles(values: list[float]) -> dict[str, float]:
    return {f"p{q}": float(np.percentile(values, q)) for q in (50, 95, 99)}


def figures_of(seen: Seen) -> dict[str, dict[str, float]]:
    """By mode, TTFT and gaps in seconds; and the job's rates."""
    figures = {}
    for mode, streams in seen.live.items():
        ttft = quantiles([s.ttft_s for s in streams])
        gap = quantiles([gap for s in streams for gap in s.gaps_s])
        figures[mode] = {"requests": float(len(streams))}
        figures[mode] |= {f"ttft_s_{q}": value for q, value in ttft.items()}
        figures[mode] |= {f"gap_s_{q}": value for q, value in gap.items()}
    alone, beside = seen.job_alone, seen.job_beside
    left = 1 - seen.alone_step_s / seen.alone_s
    figures["job"] = {
        "alone_tokens_per_s": alone.tokens_per_s,
        "beside_tokens_per_s": beside.tokens_per_s,
        "step_time_left": left,
        "rate_ratio": beside.tokens_per_s / (alone.tokens_per_s * left),
    }
    return figures


def verdicts(figures: dict[str, dict[str, float]]) -> list[str]:
    alone, job = figures["alone"], figures["job"]
    step_s, lines = alone["gap_s_p50"], []
    for mode in MODES[1:]:
        ratio = figures[mode]["ttft_s_p95"] / alone["ttft_s_p95"]
        steps = (figures[mode]["ttft_s_p50"] - alone["ttft_s_p50"]) / step_s
        lines.append(
            f"- {mode}: TTFT p95 ratio {ratio:.2f} (at most 1.2: {met(ratio <= 1.2)}), "
            f"p50 {steps:+.2f} steps of {step_s:.3f} s (at most 1: {met(steps <= 1)})"
        )
    lines.append(
        f"- the job: {job['alone_tokens_per_s']:.1f} tokens/s alone, {job['beside_tokens_per_s']:.1f} "
        f"beside live requests, which alone leave {job['step_time_left']:.2f} of the step time: "
        f"ratio {job['rate_ratio']:.2f} (at least 0.8: {met(job['rate_ratio'] >= 0.8)})"
    )
    return lines


def met(is_met: bool) -> str:
    return "met" if is_met else "missed"


def report(seen: Seen, rate: float) -> str:
    figures = figures_of(seen)
    (OUT / "bench_live.json").write_text(json.dumps(figures, indent=2))
    counts = ", ".join(f"{len(streams)} {mode}" for mode, streams in seen.live.items())
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    lines = [
        f"Live requests: {counts}, {rate}/s; {len(seen.flex)} flex requests begun; {machine}; "
        f"{time.strftime('%F')}",
        "",
        "| | " + " | ".join(MODES) + " |",
        "|---|" + "---|" * len(MODES),
    ]
    for name in figures["alone"]:
        if name != "requests":
            cells = " | ".join(f"{figures[mode][name]:.3f}" for mode in MODES)
            lines.append(f"| {name} | {cells} |")
    return "\n".join([*lines, "", *verdicts(figures)]) + "\n"


def write_rows(seen: Seen) -> None:
    with (OUT / "bench_live.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["mode", "ttft_s", "tokens", "longest_gap_s"])
        for mode, streams in seen.live.items():
            for s in streams:
                rows.writerow([mode, s.ttft_s, len(s.token_s), max(s.gaps_s, default=0.0)])


def draw(seen: Seen) -> None:
    figure, (times, rates) = plt.subplots(1, 2, figsize=(10, 4), width_ratios=(3, 1))
    for mode in MODES:
        values = sorted(s.ttft_s for s in seen.live[mode])
        times.step(values, np.linspace(0, 1, len(values)), label=mode)
    times.set(xlabel="time to first token (s)", ylabel="share of live requests", xscale="log")
    times.legend()
    job = figures_of(seen)["job"]
    alone, left = job["alone_tokens_per_s"], job["step_time_left"]
    names = ("job alone", "alone × left over", "beside live")
    rates.bar(names, (alone, alone * left, job["beside_tokens_per_s"]))
    rates.set(ylabel="tokens of the job a second")
    rates.tick_params("x", rotation=30)
    figure.savefig(OUT / "bench_live.png", dpi=120, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200, help="live: alone, and beside flex")
    parser.add_argument("--job-requests", type=int, default=60, help="live: beside a job")
    parser.add_argument("--rate", type=float, default=0.25, help="live requests a second")
    parser.add_argument("--job-s", type=float, default=160.0, help="the job by itself, in all")
    options = parser.parse_args()
    plan = Plan(options.requests, options.job_requests, options.rate, options.job_s)
    OUT.mkdir(exist_ok=True)
    seen = Seen()
    try:
        with serving(OUT / "bench-adapters") as server:
            asyncio.run(run(server, plan, seen))
    finally:  # what half an hour saw is told even where the other half fails
        if all(seen.live.values()):
            text = report(seen, plan.rate)
            (OUT / "bench_live.md").write_text(text)
            write_rows(seen)
            draw(seen)
            print(text)


if __name__ == "__main__":
    main()
