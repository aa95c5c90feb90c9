"""The fixed traffic, and what became of it."""

import json
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

FOLDER = Path(__file__).parent / "workloads"


class Request(NamedTuple):
    adapter: str | None  # None: the base model
    prompt_ids: list[int]
    max_tokens: int  # exactly so many are generated
    arrival_s: float = 0.0  # since the run began


class Timeline(NamedTuple):
    """One request as its client saw it; seconds since the run began."""

    num_tokens: int
    first_token_s: float | None  # None where a system gives tokens only at the end
    end_s: float
    num_cached: int = 0
    arrival_s: float = 0.0


class System(Protocol):
    """A way to serve requests."""

    name: str

    def serve(self, requests: list[Request]) -> list[Timeline]:
        """One for each request, in their order."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Server(System, Protocol):
    """One that tells which tokens it chose."""

    def greedy(self, request: Request) -> list[int]: ...


def load(
    name: str,
    limit: int | None = None,
    shift: int = 0,
    *,
    tail_shift: int = 0,
    rate: float | None = None,
) -> list[Request]:
    """The first requests of a workload, all at once or at exactly `rate` a second on average.

    Another shift means prompts that are in no prefix cache yet; another tail shift, prompts of which
    only what the tenant's requests share is.
    """
    rows = [
        json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()[:limit]
    ]
    unit_s = len(rows) / sum(row["gap"] for row in rows) / rate if rate else 0.0
    requests, arrival_s = [], 0.0
    for row in rows:
        prompt = row["prompt_ids"]
        prompt[0] += shift
        prompt[row["prefix_len"]] += tail_shift
        arrival_s += row["gap"] * unit_s
        requests.append(Request(row["adapter"] or None, prompt, row["max_tokens"], arrival_s))
    return requests
