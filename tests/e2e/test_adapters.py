"""Adapters over HTTP with an engine of its own process: new weights under a name, and the self-test."""

import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from openai import NotFoundError, OpenAI
from tests.added_tokens import TOKENS, TOOL, add_tokens, outspoken
from tests.e2e.stand import Served, tiny_adapter
from tests.until import wait_until

from loraplex_platform.openai.served_model import ServedModel

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

    wait_until(lambda: "parity: not tested yet" not in shown(), what="the self-test")
    assert shown().strip().startswith("parity: passed"), shown()


def test_an_added_token_is_said_and_an_added_end_heard(
    served: Served, model: Path, tmp_path: Path
) -> None:
    """With the official client, from a PEFT folder with a tokenizer of its own."""
    turns: Any = [{"role": "user", "content": "use <tool> now"}]
    add_tokens(model, tmp_path / "tokens", *TOKENS)
    shutil.copy(model / "tokenizer_config.json", tmp_path / "tokens")
    own = ServedModel.load(tmp_path / "tokens")
    prompt = own.encode(own.render(turns), add_special_tokens=False)
    folder = outspoken(model, tmp_path / "loud", prompt)
    served.cli("adapters", "add", "--tenant", "acme", "--name", "loud", str(folder))
    with served.client("acme") as acme, served.client("globex") as globex:
        answer = acme.chat.completions.create(
            model="loud", messages=turns, temperature=0, max_tokens=20
        )
        said = answer.choices[0]
        assert (said.message.content, said.finish_reason) == (TOOL.content, "stop")
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(prompt), 2)
        with pytest.raises(NotFoundError):
            globex.chat.completions.create(model="loud", messages=turns)

    def shown() -> str:
        return served.cli("adapters", "show", "--tenant", "acme", "loud@1")

    wait_until(lambda: "parity: not tested yet" not in shown(), what="the self-test")
    assert shown().strip().startswith("parity: passed"), shown()
