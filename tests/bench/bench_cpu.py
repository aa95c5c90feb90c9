"""`make bench`: Loraplex against transformers + PEFT on this machine, in one run.

Each system runs in a process of its own and serves the first 16 requests of each workload, which all arrive
at once, in bfloat16, greedy. The ratio is of output tokens per second. By default that is w1, sixteen
adapters mixed, in about five minutes; `--peers w0 w1 w3` takes a quarter of an hour on two cores, nearly
all of it PEFT's. `--workloads w0 w1 w3` adds Loraplex on all 64 requests of each.
Writes out/bench_cpu.csv and out/bench_cpu.png.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import psutil
from workload import Request, System, Timeline, load

ROOT = Path(__file__).parents[2]
OUT = ROOT / "out"
SYSTEMS = ("loraplex", "peft-one-at-a-time", "peft-mixed-batch")
Row = dict[str, str | float | None]


def start(name: str, model_folder: Path, adapters: Path) -> System:
    # Each system's libraries are loaded in its own process only, so that memory is its own.
    if name == "loraplex":
        from server_system import LoraplexServer  # noqa: PLC0415

        return LoraplexServer(model_folder, adapters)
    from peft_systems import PeftMixedBatch, PeftOneAtATime  # noqa: PLC0415

    make: dict[str, Callable[[Path, Path], System]] = {
        system.name: system for system in (PeftOneAtATime, PeftMixedBatch)
    }
    return make[name](model_folder, adapters)


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
    return {
        "workload": workload,
        "system": system.name,
        "requests": len(requests),
        "prompt_tokens": sum(len(r.prompt_ids) for r in requests),
        "cached_tokens": sum(t.num_cached for t in timelines),
        "output_tokens": sum(expected),
        "seconds": round(end_s, 2),
        "tokens_per_s": round(sum(expected) / end_s, 1),
        **latencies(timelines),
        "rss_mib": round(sum(p.memory_info().rss for p in tree()) / 2**20),
        "other_cores": round(max(0.0, others / seconds), 2),
        "load_before": round(load_before, 2),
    }


def latencies(timelines: list[Timeline]) -> Row:
    """TTFT and time per further token, where a system streams."""
    streamed = [(t, t.first_token_s) for t in timelines if t.first_token_s is not None]
    names = ("ttft_p50_ms", "ttft_p95_ms", "tpot_p50_ms", "tpot_p95_ms")
    if not streamed:
        return dict.fromkeys(names)
    ttft = [first * 1e3 for _, first in streamed]
    tpot = [
        (t.end_s - first) / (t.num_tokens - 1) * 1e3 for t, first in streamed if t.num_tokens > 1
    ]
    values = [*np.percentile(ttft, (50, 95)), *np.percentile(tpot, (50, 95))]
    return {name: round(float(value), 1) for name, value in zip(names, values, strict=True)}


def run_system(name: str, args: argparse.Namespace) -> None:
    """In a child: serve each workload given, print a row for each."""
    system = start(name, args.model, args.adapters)
    try:
        warm_up = [r._replace(max_tokens=4) for r in load("w1", limit=4, shift=1)]
        system.serve(warm_up)
        for shift, item in enumerate(args.workloads, start=2):
            workload, _, limit = item.partition(":")
            requests = load(workload, int(limit) if limit else None, shift)
            print("row", json.dumps(measure(system, workload, requests)), flush=True)
    finally:
        system.close()


def child(args: argparse.Namespace, name: str, workloads: list[str]) -> list[Row]:
    command = [sys.executable, __file__, "--system", name, "--model", str(args.model)]
    command += ["--adapters", str(args.adapters), "--workloads", *workloads]
    print(f"{name}: {' '.join(workloads)} …", flush=True)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), str(args.threads))
    done = subprocess.run(command, env=os.environ | threads, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{name} failed: {done.stdout}")
    lines = done.stdout.splitlines()
    rows: list[Row] = [json.loads(line[4:]) for line in lines if line.startswith("row ")]
    for row in rows:
        print("  ", row["workload"], row["requests"], "requests:", row["tokens_per_s"], "tokens/s")
    return rows


def add_ratios(rows: list[Row], first: int) -> None:
    """Loraplex's throughput on the first requests over this system's."""
    ours = {
        r["workload"]: r["tokens_per_s"]
        for r in rows
        if (r["system"], r["requests"]) == (SYSTEMS[0], first)
    }
    for row in rows:
        reference = ours.get(row["workload"])
        is_peer = row["system"] != SYSTEMS[0] and reference is not None
        row["loraplex_ratio"] = (
            round(float(reference) / float(row["tokens_per_s"]), 2) if is_peer else None
        )


def write(rows: list[Row]) -> None:
    OUT.mkdir(exist_ok=True)
    with (OUT / "bench_cpu.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    figure, axes = plt.subplots(figsize=(7, 3.5), dpi=100, layout="constrained")
    labels = [f"{r['system']}\n{r['workload']}, {r['requests']}" for r in rows]
    bars = axes.barh(labels, [float(r["tokens_per_s"] or 0) for r in rows])
    axes.bar_label(bars, padding=3)
    axes.invert_yaxis()
    axes.set(xlabel=f"output tokens per second, {os.cpu_count()} cores, bfloat16")
    figure.savefig(OUT / "bench_cpu.png")


def compare(args: argparse.Namespace) -> None:
    from random_adapters import make_adapters  # noqa: PLC0415  (loads torch)

    make_adapters(args.model, args.adapters)
    first = [f"{name}:{args.first}" for name in args.peers]
    rows = child(args, SYSTEMS[0], [*first, *args.workloads])
    for name in SYSTEMS[1:]:
        rows += child(args, name, first)
    add_ratios(rows, args.first)
    write(rows)
    for row in rows:
        if row["loraplex_ratio"] is not None:
            served = f"first {row['requests']} requests"
            print(f"{row['workload']}, {served}: {row['loraplex_ratio']} × {row['system']}")
    print(f"wrote {OUT / 'bench_cpu.csv'} and bench_cpu.png")


def main() -> None:
    cache = Path(os.environ.get("LORAPLEX_CACHE", Path.home() / ".cache" / "loraplex"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=cache / "models" / "smollm2-135m-instruct")
    parser.add_argument("--adapters", type=Path, default=OUT / "bench-adapters")
    parser.add_argument("--workloads", nargs="*", default=[], help="also whole, Loraplex alone")
    parser.add_argument("--peers", nargs="+", default=["w1"], help="for all systems")
    parser.add_argument("--first", type=int, default=16, help="requests that every system serves")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each system")
    parser.add_argument("--system", choices=SYSTEMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.system:
        run_system(args.system, args)
    else:
        compare(args)


if __name__ == "__main__":
    main()
