"""What a system did with a set of requests, and what else the machine did meanwhile."""

import os
import time
from dataclasses import dataclass, field

import numpy as np
import psutil
from workload import Request, System, Timeline

TTFT_LIMIT_MS, TPOT_LIMIT_MS = 1000.0, 50.0  # what a request in time keeps


@dataclass(frozen=True, slots=True)
class Row:
    """Times to the first token and per further token are of those systems alone that stream."""

    workload: str
    system: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    seconds: float
    tokens_per_s: float
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    tpot_p50_ms: float | None
    tpot_p95_ms: float | None
    in_time: float | None  # the share of requests within both limits
    rss_mib: int
    other_cores: float  # kept busy by other processes
    load_before: float
    ttft_ms: list[float] = field(default_factory=list)  # of each request
    tpot_ms: list[float] = field(default_factory=list)  # of each request of two tokens or more


FIGURES = tuple(name for name in Row.__dataclass_fields__ if name not in ("ttft_ms", "tpot_ms"))


def machine_busy_s() -> float:
    """CPU seconds that all processes of this machine have used."""
    times = psutil.cpu_times()
    return float(sum(times[:3]) + sum(times[5:8]))


def tree() -> list[psutil.Process]:
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def tree_cpu_s() -> float:
    return sum(sum(process.cpu_times()[:2]) for process in tree())


def measure(system: System, workload: str, requests: list[Request]) -> Row:
    load_before, busy, own, began = os.getloadavg()[0], machine_busy_s(), tree_cpu_s(), time.time()
    timelines = system.serve(requests)
    seconds = time.time() - began
    others = machine_busy_s() - busy - (tree_cpu_s() - own)
    expected = [r.max_tokens for r in requests]
    assert [t.num_tokens for t in timelines] == expected, "an output has another length"
    end_s = max(t.end_s for t in timelines)
    ttft, tpot = ttft_ms(timelines), tpot_ms(timelines)
    return Row(
        workload=workload,
        system=system.name,
        requests=len(requests),
        prompt_tokens=sum(len(r.prompt_ids) for r in requests),
        cached_tokens=sum(t.num_cached for t in timelines),
        output_tokens=sum(expected),
        seconds=round(end_s, 2),
        tokens_per_s=round(sum(expected) / end_s, 1),
        ttft_p50_ms=percentile(ttft, 50),
        ttft_p95_ms=percentile(ttft, 95),
        tpot_p50_ms=percentile(tpot, 50),
        tpot_p95_ms=percentile(tpot, 95),
        in_time=share_in_time(timelines),
        rss_mib=round(sum(p.memory_info().rss for p in tree()) / 2**20),
        other_cores=round(max(0.0, others / seconds), 2),
        load_before=round(load_before, 2),
        ttft_ms=[round(ms, 1) for ms in ttft],
        tpot_ms=[round(ms, 2) for ms in tpot],
    )


def ttft_ms(timelines: list[Timeline]) -> list[float]:
    return [(t.first_token_s - t.arrival_s) * 1e3 for t in timelines if t.first_token_s is not None]


def tpot_ms(timelines: list[Timeline]) -> list[float]:
    return [
        (t.end_s - t.first_token_s) / (t.num_tokens - 1) * 1e3
        for t in timelines
        if t.first_token_s is not None and t.num_tokens > 1
    ]


def share_in_time(timelines: list[Timeline]) -> float | None:
    if any(t.first_token_s is None for t in timelines):
        return None
    in_time = [
        all(ms <= TTFT_LIMIT_MS for ms in ttft_ms([t]))
        and all(ms <= TPOT_LIMIT_MS for ms in tpot_ms([t]))
        for t in timelines
    ]
    return round(sum(in_time) / len(in_time), 3)


def percentile(values: list[float], rank: float) -> float | None:
    return round(float(np.percentile(values, rank)), 1) if values else None
