"""The fixed traffic, and what became of it."""

import json
from pathlib import Path
from typing import NamedTuple, Protocol

FOLDER = Path(__file__).parent / "workloads"


class Request(NamedTuple):
    adapter: str | None  # None: the base model
    prompt_ids: list[int]
    max_tokens: int  # exactly so many are generated


class Timeline(NamedTuple):
    """One request as its client saw it; seconds since the first request was sent."""

    num_tokens: int
    first_token_s: float | None  # None where a system gives tokens only at the end
    end_s: float
    num_cached: int = 0


class System(Protocol):
    """A way to serve requests that all arrive at once."""

    name: str

    def serve(self, requests: list[Request]) -> list[Timeline]:
        """One for each request, in their order."""
        ...

    def close(self) -> None: ...


def load(name: str, limit: int | None = None, shift: int = 0) -> list[Request]:
    """The first requests of a workload; another shift means other prompts, in no prefix cache yet."""
    lines = (FOLDER / f"{name}.jsonl").read_text().splitlines()
    requests = []
    for row in map(json.loads, lines[:limit]):
        first, *others = row["prompt_ids"]
        prompt = [first - shift, *others]
        requests.append(Request(row["adapter"] or None, prompt, row["max_tokens"]))
    return requests
