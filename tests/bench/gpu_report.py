"""What bench_gpu.py says: figures, each beside its target where there is one, as text, CSV and a plot."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

BAR, LINE, LEFT, WIDTH = 260, 18, 430, 900  # pixels of the plot


class Measure(NamedTuple):
    section: str
    case: str
    value: float
    unit: str
    target: str = ""
    is_met: bool | None = None  # None: there is no target

    @property
    def verdict(self) -> str:
        return {None: "", True: "met", False: "MISSED"}[self.is_met]


def at_least(section: str, case: str, value: float, unit: str, least: float) -> Measure:
    return Measure(section, case, value, unit, f">= {least:g} {unit}", value >= least)


def at_most(section: str, case: str, value: float, unit: str, most: float) -> Measure:
    return Measure(section, case, value, unit, f"<= {most:g} {unit}", value <= most)


def table(measures: Iterable[Measure]) -> str:
    """A line a figure, columns side by side."""
    rows = [("section", "case", "value", "unit", "target", "")]
    rows += [(m.section, m.case, f"{m.value:.4g}", m.unit, m.target, m.verdict) for m in measures]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(part.ljust(w) for part, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def write_csv(measures: Sequence[Measure], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*Measure._fields])
        writer.writerows(measures)


def write_plot(measures: Sequence[Measure], path: Path, title: str) -> None:
    """Bars of all figures in per cent and of throughputs, each kind by its own largest; no library needed."""
    shown = [m for m in measures if m.unit in ("%", "tokens/s")]
    largest = {m.unit: max(n.value for n in shown if n.unit == m.unit) for m in shown}
    height = LINE * (len(shown) + 2)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="8" y="{LINE - 4}">{escape(title)}</text>',
    ]
    for i, m in enumerate(shown, start=2):
        length = BAR * max(m.value, 0.0) / (largest[m.unit] or 1.0)
        colour = {None: "#777", True: "#2a7", False: "#c33"}[m.is_met]
        said = f"{m.value:.4g} {m.unit} {m.target and f'(target {m.target})'}"
        y = LINE * i
        lines += [
            f'<text x="{LEFT - 8}" y="{y}" text-anchor="end">'
            f"{escape(f'{m.section}: {m.case}')}</text>",
            f'<rect x="{LEFT}" y="{y - 11}" width="{length:.1f}" height="12" fill="{colour}"/>',
            f'<text x="{LEFT + length + 6:.1f}" y="{y}">{escape(said)}</text>',
        ]
    path.write_text("\n".join([*lines, "</svg>"]) + "\n")
