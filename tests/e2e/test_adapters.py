"""Adapters over HTTP with an engine of its own process: new weights under a name, and the self-test."""

import time
from pathlib import Path
from typing import NamedTuple

import pytest
from openai import OpenAI
from tests.e2e.stand import Served, tiny_adapter, until

pytestmark = pytest.mark.slow

LONG = "hello again " * 30


class Said(NamedTuple):
    token_ids: tuple[int, ...]
    cached_tokens: int


def ask(client: OpenAI, model: str) -> Said:
    answer = client.chat.completions.create(  # type: ignore[call-overload]
        model=model,
        messages=[{"role": "user", "content": LONG}],
        max_tokens=12,
        temperature=0,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    cached = answer.usage.prompt_tokens_details.cached_tokens
    return Said(tuple(answer.choices[0].token_ids), cached)


def test_new_weights_under_the_same_name_never_meet_old_kv(served: Served, tmp_path: Path) -> None:
    old, new = tiny_adapter(tmp_path / "old", 1), tiny_adapter(tmp_path / "new", 2)
    served.cli("adapters", "add", "--tenant", "acme", "--name", "bot", str(old))
    served.cli("adapters", "add", "--tenant", "globex", "--name", "theirs", str(new))
    with served.client("acme") as acme, served.client("globex") as globex:
        first, warm = ask(acme, "bot"), ask(acme, "bot")
        assert warm.cached_tokens > 0
        assert warm.token_ids == first.token_ids
        served.cli("adapters", "add", "--tenant", "acme", "--name", "bot", "--update", str(new))
        served.cli("adapters", "alias", "--tenant", "acme", "bot", "2")
        time.sleep(1.0)  # what the command promises
        after, cold = ask(acme, "bot"), ask(globex, "theirs")
        assert (after.cached_tokens, cold.cached_tokens) == (0, 0)
        assert after.token_ids == cold.token_ids != first.token_ids
        assert ask(acme, "bot@1").token_ids == first.token_ids


def test_an_added_adapter_has_passed_its_self_test_within_seconds(
    served: Served, tmp_path: Path
) -> None:
    folder = tiny_adapter(tmp_path / "tested", 3)
    served.cli("adapters", "add", "--tenant", "initech", "--name", "tested", str(folder))

    def shown() -> str:
        return served.cli("adapters", "show", "--tenant", "initech", "tested@1")

    until(lambda: "parity: not tested yet" not in shown(), 60, "the self-test")
    assert shown().strip().startswith("parity: passed"), shown()
