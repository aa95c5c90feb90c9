"""Whether a server applies each adapter as transformers and PEFT do."""

import json
from dataclasses import dataclass
from pathlib import Path

from workload import Request, Server

CLOSE = 0.25  # between two logits: bfloat16 may choose the other


@dataclass(frozen=True, slots=True)
class Golden:
    """How many answers are the reference's, leave it at a close choice, and leave it anywhere else."""

    system: str
    identical: int
    close: int
    wrong: int


def compare(server: Server, file: Path) -> Golden:
    counts = {"identical": 0, "close": 0, "wrong": 0}
    for row in json.loads(file.read_text()):
        expected = row["tokens"]
        said = server.greedy(Request(row["adapter"], row["prompt_ids"], len(expected)))
        assert len(said) == len(expected), f"{len(said)} tokens instead of {len(expected)}"
        leaves_at = next(
            (i for i, (a, b) in enumerate(zip(said, expected, strict=True)) if a != b), None
        )
        if leaves_at is None:
            counts["identical"] += 1
        else:
            counts["close" if row["margins"][leaves_at] < CLOSE else "wrong"] += 1
    return Golden(server.name, **counts)
