"""Whether a server applies each adapter as transformers and PEFT do."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from workload import Request, Server


@dataclass(frozen=True, slots=True)
class Golden:
    """Of how many answers; how many are the reference's to the last token; and where the others leave
    it: by how much the reference prefers its own token, in logits. bfloat16 explains a few tenths, an
    adapter that is not applied leaves it at once and by whole numbers."""

    system: str
    answers: int
    identical: int
    margins: list[float]  # the largest first


def compare(server: Server, file: Path) -> Golden:
    """All answers are asked for at once, so that each is computed among others."""
    rows = json.loads(file.read_text())
    asked = [Request(row["adapter"], row["prompt_ids"], len(row["tokens"])) for row in rows]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(server.greedy, asked))
    left = [
        margin_where_left(said, row["tokens"], row["margins"])
        for said, row in zip(answers, rows, strict=True)
    ]
    margins = sorted((margin for margin in left if margin is not None), reverse=True)
    return Golden(server.name, len(rows), len(rows) - len(margins), margins)


def margin_where_left(said: list[int], expected: list[int], margins: list[float]) -> float | None:
    assert len(said) == len(expected), f"{len(said)} tokens instead of {len(expected)}"
    for token, wanted, margin in zip(said, expected, margins, strict=True):
        if token != wanted:
            return margin
    return None
