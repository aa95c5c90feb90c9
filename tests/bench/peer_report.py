"""What `make bench-peers` found: tables, ratios with their intervals, targets, a plot."""

import csv
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import matplotlib.pyplot as plt
from environments import LLAMA_CPP, REQUIREMENTS, VLLM
from measurement import FIGURES, Row
from paired import Ratio, ratio
from passes import Pass
from peer_plan import Entry

OUT = Path(__file__).parents[2] / "out"
OURS = "loraplex"
BUSY = 0.15  # cores of others' work: beyond it a row is marked


class Target(NamedTuple):
    """How many times the peer's tokens a second; PEFT alone is asked for fewer requests."""

    ours: str
    peer: str
    theirs: str
    at_least: float


TARGETS = (
    Target("w1", "vllm", "w1", 3.5),
    Target("w1", "llama.cpp", "w1", 4.0),
    Target("w1", "peft-one-at-a-time", "w1:16", 18.0),
    Target("w0", "vllm-base", "w0", 1.1),
    Target("w3", "vllm", "w3", 3.5),
    Target("w3", "llama.cpp", "w3", 6.0),
    Target("w3+warm", "vllm", "w3+warm", 3.5),
)


class Results:
    """The journal's rows: of those that were measured twice for a visit, the later one."""

    def __init__(self, entries: list[Entry]) -> None:
        rows = {
            (e["round"], e["system"], e["turn"], e["row"]["workload"]): Row(**e["row"])
            for e in entries
            if "row" in e
        }
        self.rows = list(rows.items())
        self.systems = list(dict.fromkeys(row.system for _, row in self.rows))
        self.golden = {e["system"]: e["golden"] for e in entries if "golden" in e}
        self.best = {e["system"]: e["best"]["rate"] for e in entries if "best" in e}

    def of(self, system: str, workload: str) -> list[Row]:
        return [r for _, r in self.rows if (r.system, r.workload) == (system, workload)]

    def workloads(self, is_wanted: Callable[[Pass], bool]) -> list[str]:
        """In the order of their first rows; the probes of a search are not among them."""
        names = dict.fromkeys(row.workload for _, row in self.rows)
        return [name for name in names if is_wanted(Pass.parse(name))]

    def by_round(self, system: str, workload: str) -> dict[int, float]:
        """Tokens a second; of several visits in a round, their median."""
        seen: dict[int, list[float]] = {}
        for (number, *_), row in self.rows:
            if (row.system, row.workload) == (system, workload):
                seen.setdefault(number, []).append(row.tokens_per_s)
        return {number: median(rates) for number, rates in seen.items()}

    def times(self, ours: str, peer: str, theirs: str) -> Ratio | None:
        """Our tokens a second over a peer's, over the rounds that have both."""
        above, below = self.by_round(OURS, ours), self.by_round(peer, theirs)
        both = sorted(above.keys() & below.keys())
        return ratio([above[n] for n in both], [below[n] for n in both]) if both else None


def write_report(entries: list[Entry], threads: int) -> str:
    """Write the four files; returns the tables and what became of the targets."""
    results = Results(entries)
    at_once = results.workloads(lambda p: p.rate is None)
    lines = [machine(threads), "", *at_once_table(results, at_once), ""]
    if results.workloads(lambda p: p.rate is not None):
        lines += [*online_table(results), ""]
    if results.golden:
        lines += [*golden_table(results), ""]
    text = "\n".join([*lines, *verdicts(results)]) + "\n"
    (OUT / "bench_peers.md").write_text(text)
    with (OUT / "bench_peers.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["round", "turn", *FIGURES])
        for (number, _, turn, _), row in results.rows:
            writer.writerow([number, turn, *(getattr(row, name) for name in FIGURES)])
    (OUT / "bench_peers.json").write_text(json.dumps(as_json(results, at_once, threads), indent=1))
    draw(results, at_once, threads)
    return text + f"wrote {OUT / 'bench_peers'}.json, .csv, .md and .png"


def machine(threads: int) -> str:
    cpuinfo = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [line.partition(": ")[2] for line in cpuinfo.splitlines() if "model name" in line]
    name = models[0] if models else platform.processor() or platform.machine()
    versions = f"vLLM {VLLM}, llama.cpp {LLAMA_CPP}, {', '.join(REQUIREMENTS['peft'][:3])}"
    return f"{name}, {os.cpu_count()} cores, {threads} threads a system; {versions}; {time.strftime('%F')}"


def at_once_table(results: Results, workloads: list[str]) -> list[str]:
    """Medians, the rounds in brackets, and how many times as many tokens Loraplex makes."""
    lines = ["Output tokens a second, all requests at once (rounds), and Loraplex over it:", ""]
    lines += ["| | " + " | ".join(workloads) + " |", "|---|" + "---|" * len(workloads)]
    for system in results.systems:
        cells = [at_once_cell(results, system, workload) for workload in workloads]
        lines.append(f"| {system} | {' | '.join(cells)} |")
    return lines


def at_once_cell(results: Results, system: str, workload: str) -> str:
    rows = results.of(system, workload)
    if not rows:
        return ""
    rates = [row.tokens_per_s for row in rows]
    cell = f"{median(rates):.1f}"
    if len(rates) > 1:
        cell += f" ({', '.join(map(str, rates))})"
    if any(row.other_cores > BUSY for row in rows):
        cell += f" disturbed: {max(row.other_cores for row in rows)} cores"
    times = results.times(workload, system, workload) if system != OURS else None
    return cell if times is None else f"{cell}: {spread(times)}"


def spread(times: Ratio) -> str:
    if times.low == times.high:
        return f"{times.value:.2f} ×"  # one round
    return f"{times.value:.2f} × ({times.low:.2f} to {times.high:.2f})"


def online_table(results: Results) -> list[str]:
    lines = ["Poisson arrivals, in time: TTFT at most 1 s and TPOT at most 50 ms:", ""]
    lines += ["| | requests/s | requests | TTFT p50 / p95 ms | TPOT p50 / p95 ms | in time | other cores |",
              "|---|---|---|---|---|---|---|"]  # fmt: skip
    for _, row in results.rows:
        rate = Pass.parse(row.workload).rate
        if rate is not None and row.in_time is not None:
            lines.append(
                f"| {row.system} | {rate:g} | {row.requests} | {row.ttft_p50_ms} / {row.ttft_p95_ms} "
                f"| {row.tpot_p50_ms} / {row.tpot_p95_ms} | {row.in_time:.0%} | {row.other_cores} |"
            )
    for system, rate in results.best.items():
        found = "none that was tried" if rate is None else f"{rate:g} requests/s"
        lines += ["", f"Highest rate with 90 % in time, {system}: {found}"]
    return lines


def golden_table(results: Results) -> list[str]:
    lines = ["Greedy answers against transformers and PEFT in float32:", ""]
    lines += ["| | identical | the others leave it at a margin of, in logits |", "|---|---|---|"]
    for system, found in results.golden.items():
        margins = ", ".join(f"{margin:.2f}" for margin in found["margins"])
        lines.append(f"| {system} | {found['identical']} of {found['answers']} | {margins} |")
    return lines


def verdicts(results: Results) -> list[str]:
    lines = []
    for target in TARGETS:
        times = results.times(*target[:3])
        if times is not None:
            met = "met" if times.value >= target.at_least else "missed"
            asked = "" if target.ours == target.theirs else f" (its {target.theirs})"
            lines.append(
                f"- {target.ours}: {spread(times)} {target.peer}{asked}, "
                f"at least {target.at_least:g}: {met}"
            )
    return [*lines, *online_verdicts(results)]


def online_verdicts(results: Results) -> list[str]:
    lines = []
    ours, vllm, llama = (results.of(s, "w1@0.5") for s in (OURS, "vllm", "llama.cpp"))
    if ours and vllm:
        mine, theirs = (median(row.ttft_p95_ms or 0 for row in rows) for rows in (ours, vllm))
        met = "met" if mine < theirs else "missed"
        lines.append(f"- w1 at 0.5/s: TTFT p95 {mine:.0f} ms, vLLM's {theirs:.0f}, below it: {met}")
    if ours and llama:
        times = ratio(ours[-1].tpot_ms, llama[-1].tpot_ms)  # the same requests in both
        met = "met" if times.value <= 1.25 else "missed"
        lines.append(f"- w1 at 0.5/s: TPOT p50 {spread(times)} llama.cpp's, at most 1.25: {met}")
    for row in results.of(OURS, "w1@2"):
        met = "met" if row.in_time is not None and row.in_time >= 0.95 else "missed"
        lines.append(f"- w1 at 2/s: {row.in_time:.1%} in time, at least 95 %: {met}")
    return lines


def as_json(results: Results, at_once: list[str], threads: int) -> Entry:
    times = {
        f"{workload} {system}": found._asdict()
        for workload in at_once
        for system in results.systems
        if system != OURS and (found := results.times(workload, system, workload)) is not None
    }
    rows = [
        {"round": n, "turn": turn} | {name: getattr(row, name) for name in Row.__dataclass_fields__}
        for (n, _, turn, _), row in results.rows
    ]
    return {
        "machine": machine(threads),
        "loraplex_over": times,
        "best_rates": results.best,
        "golden": results.golden,
        "rows": rows,
    }


def draw(results: Results, at_once: list[str], threads: int) -> None:
    figure, axes = plt.subplots(figsize=(9, 4), dpi=120, layout="constrained")
    width = 0.8 / len(results.systems)
    for number, system in enumerate(results.systems):
        seen = [(i, results.by_round(system, w)) for i, w in enumerate(at_once)]
        places = [i + number * width for i, rates in seen if rates]
        bars = axes.bar(
            places, [median(rates.values()) for _, rates in seen if rates], width, label=system
        )
        axes.bar_label(bars, fmt="%.0f", fontsize=7)
    axes.set_xticks([i + 0.4 - width / 2 for i in range(len(at_once))], at_once)
    axes.set(ylabel=f"output tokens a second, {threads} threads, bfloat16")
    axes.legend(fontsize=8)
    figure.savefig(OUT / "bench_peers.png")
    plt.close(figure)
