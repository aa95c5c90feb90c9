"""Rows of runs become one line per experiment, variant, policy and rate."""

from collections import defaultdict
from statistics import fmean
from typing import Any

from tests.sim.measure import percentile

MEANS = (
    "attainment",
    "attainment_interactive",
    "ttft_p50",
    "ttft_p95",
    "ttft_p99",
    "tpot_p99",
    "live_service",
    "batch_service",
    "recomputed_share",
    "step_s",
    "model_error",
)


def summarise(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Means over seeds. `spare` is what batch work got of what live traffic left of batch alone."""
    groups: dict[tuple[object, ...], list[dict[str, object]]] = defaultdict(list)
    for row in rows:
        key = (row["experiment"], row["variant"], row["policy"], round(float(str(row["rate"])), 2))
        groups[key].append(row)
    alone = [row["batch_service"] for row in rows if row["variant"] == "batch only"]
    capacity = float(str(alone[0])) if alone else None
    lines = []
    for (experiment, variant, policy, rate), group in groups.items():
        line: dict[str, object] = {
            "experiment": experiment,
            "variant": variant,
            "policy": policy,
            "rate": rate,
            "seeds": len(group),
            "finished": sum(int(str(row["finished"])) for row in group),
        }
        for name in MEANS:
            line[name] = round(fmean(float(str(row[name])) for row in group), 5)
        if capacity and variant not in ("batch only", "live only") and experiment == "co-serving":
            left = capacity - float(str(line["live_service"]))
            line["spare"] = round(float(str(line["batch_service"])) / left, 4)
        lines.append(line)
    return lines


def summarise_checks(rows: list[dict[str, Any]]) -> list[dict[str, object]]:
    """Of tenants that always wait: gaps, Jain, shares. Of static batches: their waste by the formula."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["experiment"], row["variant"]].append(row)
    lines = []
    for (experiment, variant), group in groups.items():
        line: dict[str, object] = {
            "experiment": experiment,
            "variant": variant,
            "seeds": len(group),
            "finished": sum(row["finished"] for row in group),
        }
        if experiment == "fairness":
            gaps = [ratio for row in group for ratio in row["gap_ratios"]]
            line |= {f"gap/bound p{p}": round(percentile(gaps, p / 100), 3) for p in (50, 95)}
            line["gap/bound max"] = round(max(gaps), 3)
            for windows in ("jain", "jain_brief"):
                indices = sorted(index for row in group for index in row[windows])
                line[f"{windows} windows"] = len(indices)
                line[f"{windows} least"] = [round(index, 4) for index in indices[:3]]
            line["least share / greatest"] = round(min(row["share_ratio"] for row in group), 4)
        else:
            for name in ("ratio", "formula"):
                line[name] = round(fmean(row[name] for row in group), 2)
        lines.append(line)
    return lines


def to_table(lines: list[dict[str, object]]) -> str:
    """A Markdown table: times in ms, shares in percent."""
    head = (
        "experiment",
        "variant",
        "policy",
        "req/s",
        "seeds",
        "finished",
        "attained %",
        "interactive %",
        "TTFT p50/p95/p99 ms",
        "TPOT p99 ms",
        "batch tok/s",
        "of spare %",
        "recomputed %",
    )
    table = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for line in lines:
        value = {name: float(str(line[name])) for name in MEANS}
        ttft = "/".join(f"{1e3 * value[f'ttft_{p}']:.0f}" for p in ("p50", "p95", "p99"))
        spare = f"{100 * float(str(line['spare'])):.1f}" if "spare" in line else "–"
        cells = (
            line["experiment"],
            line["variant"],
            line["policy"],
            line["rate"],
            line["seeds"],
            line["finished"],
            f"{100 * value['attainment']:.2f}",
            f"{100 * value['attainment_interactive']:.2f}",
            ttft,
            f"{1e3 * value['tpot_p99']:.1f}",
            f"{value['batch_service']:.0f}",
            spare,
            f"{100 * value['recomputed_share']:.2f}",
        )
        table.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(table)
