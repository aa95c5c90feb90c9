"""`make bench`: Loraplex against transformers + PEFT on this machine, in one run.

Each system runs in a process of its own and serves the first 16 requests of each workload, which all arrive
at once, in bfloat16, greedy. The ratio is of output tokens per second. By default that is w1, sixteen
adapters mixed, in about five minutes; `--peers w0 w1 w3` takes a quarter of an hour on two cores, nearly
all of it PEFT's. `--workloads w0 w1 w3` adds Loraplex on all 64 requests of each.
Writes out/bench_cpu.csv and out/bench_cpu.png.
"""

import argparse
import csv
import os
import sys
from pathlib import Path

import matplotlib.pyplot as plt
from measurement import FIGURES, Row
from random_adapters import make_adapters
from visit import PEFT_SYSTEMS, visit

OUT = Path(__file__).parents[2] / "out"
OURS = "loraplex"


def measured(args: argparse.Namespace, name: str, workloads: list[str]) -> list[Row]:
    print(f"{name}: {' '.join(workloads)} …", flush=True)
    rows = []
    threads, folders = args.threads, {"model": args.model, "adapters": args.adapters}
    for said in visit(sys.executable, name, workloads, threads=threads, **folders):
        if "row" in said:
            rows.append(Row(**said["row"]))
            print(f"   {rows[-1].workload}: {rows[-1].tokens_per_s} tokens/s", flush=True)
    return rows


def ratio(row: Row, rows: list[Row]) -> float | None:
    """How many times this system's tokens a second Loraplex makes of the same requests."""
    if row.system == OURS:
        return None
    [ours] = (r for r in rows if (r.system, r.workload) == (OURS, row.workload))
    return round(ours.tokens_per_s / row.tokens_per_s, 2)


def write(rows: list[Row]) -> None:
    OUT.mkdir(exist_ok=True)
    with (OUT / "bench_cpu.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*FIGURES, "loraplex_ratio"])
        writer.writerows(
            [*(getattr(row, name) for name in FIGURES), ratio(row, rows)] for row in rows
        )
    figure, axes = plt.subplots(figsize=(7, 3.5), dpi=100, layout="constrained")
    bars = axes.barh([f"{r.system}\n{r.workload}" for r in rows], [r.tokens_per_s for r in rows])
    axes.bar_label(bars, padding=3)
    axes.invert_yaxis()
    axes.set(xlabel=f"output tokens per second, {os.cpu_count()} cores, bfloat16")
    figure.savefig(OUT / "bench_cpu.png")


def main() -> None:
    cache = Path(os.environ.get("LORAPLEX_CACHE", Path.home() / ".cache" / "loraplex"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=cache / "models" / "smollm2-135m-instruct")
    parser.add_argument("--adapters", type=Path, default=OUT / "bench-adapters")
    parser.add_argument("--workloads", nargs="*", default=[], help="also whole, Loraplex alone")
    parser.add_argument("--peers", nargs="+", default=["w1"], help="for all systems")
    parser.add_argument("--first", type=int, default=16, help="requests that every system serves")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each system")
    args = parser.parse_args()
    make_adapters(args.model, args.adapters)
    first = [f"{name}:{args.first}" for name in args.peers]
    rows = measured(args, OURS, [*first, *args.workloads])
    for name in PEFT_SYSTEMS:
        rows += measured(args, name, first)
    write(rows)
    for row in rows:
        if row.system != OURS:
            print(f"{row.workload}: {ratio(row, rows)} × {row.system}")
    print(f"wrote {OUT / 'bench_cpu.csv'} and bench_cpu.png")


if __name__ == "__main__":
    main()
