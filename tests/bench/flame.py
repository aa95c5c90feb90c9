"""A flame graph of folded stacks as one small SVG without scripts.

    py-spy record --format raw --rate 200 -o out/stacks.txt -- \\
        python tests/bench/profile_step.py --only "decode 32"
    python tests/bench/flame.py out/stacks.txt deploy/docs/step.svg

Only what runs below a frame is drawn, so that loading and preparing are left out, and what watches is no box.
Each box is as wide as its share of the samples; colours tell layers apart.
"""

import argparse
import re
from collections import defaultdict
from html import escape
from pathlib import Path

WIDTH, ROW, LETTER, FONT = 1200, 17, 6.6, 11  # pixels
LEAST = 0.003  # share of all samples that a box must have
COLOURS = {
    "loraplex_kernels/": "#f4a259",
    "loraplex_engine/": "#f7d070",
    "loraplex_adapters/": "#a8c686",
    "torch/": "#8fb8de",
    "numba/": "#c3a6d8",
}
WATCHERS = ("Profile.timed.<locals>.timed", "context_decorator.<locals>.decorate_context")
FRAME = re.compile(r"(?P<name>.+?) \((?P<file>[^():]+)(:\d+)?\)$")


class Box:
    """A frame under its callers, and how often it was seen there."""

    def __init__(self) -> None:
        self.samples = 0
        self.called: defaultdict[str, Box] = defaultdict(Box)


def label(frame: str) -> str:
    found = FRAME.match(frame)
    return frame if found is None else f"{found['name']} ({Path(found['file']).name})"


def colour(frame: str) -> str:
    return next((shade for part, shade in COLOURS.items() if part in frame), "#cccccc")


def read(stacks: Path, below: str) -> Box:
    root = Box()
    for line in stacks.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        labels = [label(frame) for frame in frames]
        if below not in labels:
            continue
        box = root
        box.samples += int(count)
        for frame in frames[labels.index(below) + 1 :]:
            if frame.startswith(WATCHERS):
                continue
            box = box.called[frame.rsplit(":", 1)[0].rstrip(")") + ")"]
            box.samples += int(count)
    return root


def draw(box: Box, x: float, depth: int, scale: float, least: int, out: list[str]) -> int:
    """The boxes below this one; returns how deep they go."""
    deepest = depth
    for frame, child in sorted(box.called.items()):
        width = child.samples * scale
        if child.samples >= least:
            name, share = label(frame), child.samples * scale / WIDTH
            shown = name[: max(0, int(width / LETTER) - 1)]
            out.append(
                f'<g><title>{escape(name)}: {share:.1%}</title><rect x="{x:.1f}" y="{depth * ROW}" '
                f'width="{width:.1f}" height="{ROW - 1}" fill="{colour(frame)}"/>'
                f'<text x="{x + 3:.1f}" y="{depth * ROW + 12}">{escape(shown)}</text></g>'
            )
            deepest = max(deepest, draw(child, x, depth + 1, scale, least, out))
        x += width
    return deepest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stacks", type=Path)
    parser.add_argument("svg", type=Path)
    parser.add_argument("--below", default="run.<locals>.step (profile_step.py)")
    args = parser.parse_args()
    root = read(args.stacks, args.below)
    assert root.samples, f"no stack has {args.below}"
    boxes: list[str] = []
    deepest = draw(root, 0, 0, WIDTH / root.samples, max(1, int(LEAST * root.samples)), boxes)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{deepest * ROW}" '
        f'font-family="monospace" font-size="{FONT}">'
    )
    args.svg.write_text("\n".join([head, *boxes, "</svg>\n"]))
    print(f"{root.samples} samples, {len(boxes)} boxes, {args.svg.stat().st_size} bytes")


if __name__ == "__main__":
    main()
