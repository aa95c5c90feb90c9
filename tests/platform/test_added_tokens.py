"""Added tokens over HTTP, with the official client and a real engine: said, counted, and nobody else's."""

import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from openai import AsyncOpenAI, BadRequestError, NotFoundError
from tests.adapter_stand import AdapterClient, code_of, tar_of, zip_of
from tests.added_tokens import DONE, NOTE, TOOL, add_tokens, outspoken
from tests.platform_stand import BASE, Seeded, token_of
from tests.stepped_engine import SteppedEngine, tiny_base, tiny_config
from tokenizers import AddedToken

from loraplex_adapters.folder import CONFIG_NAME, TOKENIZER_LIMITS, WEIGHTS_NAME
from loraplex_adapters.store import AdapterStore
from loraplex_engine.build import LoadedModel, load_model
from loraplex_platform.app import create_app
from loraplex_platform.config import Settings
from loraplex_platform.openai.served_model import ServedModel

SIZE = 259  # of the base model's vocabulary
TURNS: Any = [{"role": "user", "content": "use <tool> now"}]
NAMES = (CONFIG_NAME, WEIGHTS_NAME, *TOKENIZER_LIMITS)


@dataclass(frozen=True, slots=True)
class Loud:
    """A base model, and the files of an adapter that answers TURNS with TOOL and DONE."""

    base: Path
    model: LoadedModel
    files: dict[str, bytes]


@pytest.fixture(scope="module", params=[SIZE, SIZE + 5], ids=["rows beyond", "spare rows"])
def loud(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loud:
    folder = tmp_path_factory.mktemp("loud")
    base = tiny_base(folder / "base", request.param)
    prompt = prompt_ids(base, folder / "tokens")
    adapter = outspoken(base, folder / "adapter", prompt)
    files = {name: (adapter / name).read_bytes() for name in NAMES if (adapter / name).exists()}
    return Loud(base, load_model(tiny_config(base)), files)


def prompt_ids(base: Path, scratch: Path) -> list[int]:
    """What TURNS are to whoever knows the added tokens."""
    add_tokens(base, scratch, TOOL, DONE, NOTE)
    shutil.copy(base / "tokenizer_config.json", scratch)
    model = ServedModel.load(scratch)
    return list(model.encode(model.render(TURNS), add_special_tokens=False))


@dataclass(frozen=True, slots=True)
class Stand:
    app: FastAPI
    acme: AdapterClient
    globex: AdapterClient
    http: httpx2.AsyncClient
    files: dict[str, bytes]
    has_spare_rows: bool

    def openai(self, client: AdapterClient) -> AsyncOpenAI:
        return AsyncOpenAI(
            base_url="http://test/v1", api_key=client.key, max_retries=0, http_client=self.http
        )


@pytest.fixture
async def stand(loud: Loud, settings: Settings, keys: Seeded) -> AsyncIterator[Stand]:
    settings = replace(settings, model=str(loud.base))
    engine = SteppedEngine(tiny_config(loud.base), loud.model, AdapterStore(settings.adapter_store))
    app = create_app(settings, engine, ServedModel.load(loud.base, BASE))
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
        clients = [AdapterClient(http, key) for key in (keys.acme, keys.globex)]
        made = await clients[0].upload("loud", archive=zip_of(loud.files))
        assert made.status_code == 201, made.text
        assert made.json()["versions"][0]["report"]["added_tokens"] == [
            "<tool>",
            "<|done|>",
            "<note>",
        ]
        yield Stand(app, *clients, http, loud.files, loud.model.config.vocab_size > SIZE)
        await app.state.inference.tasks.drain()
    await app.state.gate.close()
    await app.state.database.news.close()
    await app.state.database.close()
    await engine.close()


async def test_a_chat_says_an_added_token_and_stops_at_an_added_end(stand: Stand) -> None:
    answer = await stand.openai(stand.acme).chat.completions.create(
        model="loud", messages=TURNS, temperature=0, max_tokens=9, logprobs=True, top_logprobs=2,
        extra_body={"return_token_ids": True},
    )  # fmt: skip
    [choice] = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("<tool>", "stop")
    assert choice.model_extra is not None
    assert choice.model_extra["token_ids"] == [SIZE, SIZE + 1]
    assert answer.model_extra is not None
    asked = answer.model_extra["prompt_token_ids"]
    assert asked.count(SIZE) == 1
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(asked), 2)
    assert choice.logprobs is not None
    tokens = choice.logprobs.content or []
    assert [token.token for token in tokens] == ["<tool>", "<|done|>"]
    assert [bytes(token.bytes or ()) for token in tokens] == [b"<tool>", b"<|done|>"]
    assert all(token.top_logprobs[0].token == token.token for token in tokens)


async def test_a_stream_says_the_same(stand: Stand) -> None:
    stream = await stand.openai(stand.acme).chat.completions.create(
        model="loud", messages=TURNS, temperature=0, max_tokens=9, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = [chunk async for chunk in stream]
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == "<tool>"
    assert choices[-1].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 2


async def test_parameters_take_the_adapters_own_tokens(stand: Stand) -> None:
    client = stand.openai(stand.acme)

    async def ask(**body: Any) -> tuple[str | None, str]:
        given: Any = {"temperature": 0, "max_tokens": 3} | body
        answer = await client.chat.completions.create(model="loud", messages=TURNS, **given)
        return answer.choices[0].message.content, answer.choices[0].finish_reason

    assert await ask(extra_body={"stop_token_ids": [SIZE]}) == ("", "stop")
    assert await ask(logit_bias={str(SIZE): 100}, extra_body={"ignore_eos": True}) == (
        "<tool><tool><tool>",
        "length",
    )
    whole = await client.completions.create(
        model="loud", prompt="a <note><|done|>", temperature=0, max_tokens=1,
        extra_body={"return_token_ids": True},
    )  # fmt: skip
    assert whole.choices[0].model_extra is not None
    assert whole.choices[0].model_extra["prompt_token_ids"] == [token_of("a"), SIZE + 2, SIZE + 1]
    ids = await client.completions.create(
        model="loud", prompt=[token_of("a"), SIZE + 2], max_tokens=1, temperature=0
    )
    assert ids.usage is not None
    assert ids.usage.prompt_tokens == 2
    with pytest.raises(BadRequestError, match="not a token id of this model"):
        await client.completions.create(model="loud", prompt=[SIZE + 3], max_tokens=1)


async def test_to_everybody_else_these_tokens_are_text(stand: Stand) -> None:
    for client in (stand.acme, stand.globex):
        answer = await stand.openai(client).completions.create(
            model=BASE, prompt="<tool>", max_tokens=1, extra_body={"return_token_ids": True}
        )
        assert answer.choices[0].model_extra is not None
        asked = answer.choices[0].model_extra["prompt_token_ids"]
        assert asked == [token_of(char) for char in "<tool>"]
    for body in (
        {"prompt": [SIZE]},
        {"prompt": "a", "logit_bias": {str(SIZE): 1}},
        {"prompt": "a", "extra_body": {"stop_token_ids": [SIZE]}},
    ):
        given: Any = {"model": BASE, "max_tokens": 1} | body
        with pytest.raises(BadRequestError, match="not a token id of this model"):
            await stand.openai(stand.acme).completions.create(**given)
    with pytest.raises(NotFoundError):
        await stand.openai(stand.globex).completions.create(model="loud", prompt="a", max_tokens=1)


async def test_two_tenants_call_the_same_id_what_they_like(
    stand: Stand, loud: Loud, tmp_path: Path
) -> None:
    theirs = [AddedToken("<gold>", normalized=False), DONE, NOTE]
    add_tokens(loud.base, tmp_path, *theirs, eos_token=DONE.content)
    files = stand.files | {"tokenizer.json": (tmp_path / "tokenizer.json").read_bytes()}
    assert (await stand.globex.upload("loud", archive=tar_of(files))).status_code == 201
    for client, text in ((stand.acme, "<tool>"), (stand.globex, "<gold>")):
        answer = await stand.openai(client).chat.completions.create(
            model="loud",
            messages=[{"role": "user", "content": f"use {text} now"}],
            temperature=0,
            max_tokens=9,
        )
        assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (
            text,
            "stop",
        )


async def test_a_registered_prefix_has_the_adapters_tokens(stand: Stand) -> None:
    headers = {"authorization": f"Bearer {stand.acme.key}"}
    text = "<tool>" * 40
    for model, num_tokens in (("loud", 32), (BASE, 240)):
        made = await stand.http.post(
            "/v1/prefixes", json={"name": f"p-{num_tokens}", "model": model, "prompt": text},
            headers=headers,
        )  # fmt: skip
        assert made.status_code == 200, made.text
        assert made.json()["num_tokens"] == num_tokens


async def test_parts_of_a_form_are_judged_and_refused(stand: Stand) -> None:
    def parts(**change: bytes) -> dict[str, tuple[str, bytes]]:
        named = {
            name.removesuffix(".json"): stand.files[name]
            for name in TOKENIZER_LIMITS
            if name in stand.files
        }
        named |= {"config": stand.files[CONFIG_NAME], "weights": stand.files[WEIGHTS_NAME]}
        return {name: (name, content) for name, content in (named | change).items()}

    async def send(files: dict[str, tuple[str, bytes]], name: str = "parts") -> httpx2.Response:
        headers = {"authorization": f"Bearer {stand.acme.key}"}
        return await stand.http.post(
            "/v1/adapters", data={"name": name}, files=files, headers=headers
        )

    content = json.loads(stand.files["tokenizer.json"])
    content["model"]["vocab"] |= {"a": token_of("b"), "b": token_of("a")}
    foreign = json.dumps(content).encode()
    assert code_of(await send(parts(tokenizer=foreign))) == (400, "foreign_tokenizer")
    none = {name: part for name, part in parts().items() if name != "tokenizer"}
    silent = await send(none, "silent")
    if stand.has_spare_rows:  # which are the base model's, and have no text
        assert silent.json()["versions"][0]["report"]["added_tokens"] == []
    else:
        assert code_of(silent) == (400, "unsupported_feature")
    made = await send(parts())
    assert made.status_code == 201
    assert made.json()["versions"][0]["report"]["added_tokens"] == ["<tool>", "<|done|>", "<note>"]
