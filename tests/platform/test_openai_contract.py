"""The official client, unmodified, against the API."""

import asyncio
import json

import httpx2
import pytest
from openai import NotFoundError, OpenAI
from tests.platform_stand import BASE, Served, token_of, usage_of

from loraplex_platform.openai.answer_schemas import ChatCompletion, Completion

HELLO = [{"role": "user", "content": "hello"}]
PROMPT_TOKENS = 1 + len("user\nhello") + 1 + 1 + 1 + len("assistant\n")


async def test_models_are_the_base_and_the_tenants_own(served: Served) -> None:
    acme = [m.id async for m in served.client().models.list()]
    globex = [m.id async for m in served.client(served.keys.globex).models.list()]
    assert (acme, globex) == ([BASE, "acme-only", "support"], [BASE, "support"])


async def test_model_by_id_with_slash_and_colon(served: Served) -> None:
    assert (await served.client().models.retrieve(BASE)).id == BASE
    with pytest.raises(NotFoundError) as caught:
        await served.client(served.keys.globex).models.retrieve("acme-only")
    assert caught.value.code == "model_not_found"


async def test_chat_answers_in_the_name_of_the_adapter_with_exact_usage(served: Served) -> None:
    answer = await served.client().chat.completions.create(
        model="support", messages=HELLO, max_tokens=5, seed=1
    )
    assert (answer.model, answer.object, answer.service_tier) == (
        "support",
        "chat.completion",
        "default",
    )
    assert answer.choices[0].finish_reason == "length"
    assert len(answer.choices[0].message.content or "") == 5
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (PROMPT_TOKENS, 5)
    assert served.engine.requests[0].adapter == "acme-support"
    assert answer._request_id.startswith("req_")


async def test_second_chat_of_a_conversation_reports_cached_tokens(served: Served) -> None:
    client, create = served.client(), {"model": BASE, "messages": HELLO, "max_tokens": 2}
    first = await client.chat.completions.create(**create)
    again = await client.chat.completions.create(**create)
    cached = [a.usage.prompt_tokens_details.cached_tokens for a in (first, again)]
    assert cached == [0, 16]
    other = await served.client(served.keys.globex).chat.completions.create(**create)
    assert other.usage.prompt_tokens_details.cached_tokens == 0


async def test_stream_equals_the_whole_answer(served: Served) -> None:
    client = served.client()
    create = {"model": BASE, "messages": HELLO, "max_tokens": 8, "seed": 5}
    whole = await client.chat.completions.create(**create)
    stream = await client.chat.completions.create(
        **create, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks[:-1]][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}
    )
    assert all(c.usage is None for c in chunks[:-1])
    assert len({c.id for c in chunks}) == 1


async def test_stream_on_the_wire_is_openais(served: Served) -> None:
    body = {"model": BASE, "messages": HELLO, "max_tokens": 2, "stream": True}
    async with httpx2.AsyncClient(timeout=60) as http:
        response = await http.post(
            f"{served.base_url}/v1/chat/completions",
            json=body,
            headers={"authorization": f"Bearer {served.keys.acme}"},
        )
    lines = response.text.split("\n\n")
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-request-id"].startswith("req_")
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert [c["object"] for c in chunks] == ["chat.completion.chunk"] * 4
    assert "usage" not in chunks[0]


async def test_sync_client_streams_too(served: Served) -> None:
    def work(client: OpenAI) -> str:
        stream = client.chat.completions.create(
            model=BASE, messages=HELLO, max_tokens=4, stream=True
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    with served.sync_client() as client:
        assert len(await asyncio.to_thread(work, client)) == 4


async def test_stop_string_across_token_borders(served: Served) -> None:
    client, create = served.client(), {"model": BASE, "messages": HELLO, "seed": 3}
    text = (await client.chat.completions.create(**create, max_tokens=12)).choices[0]
    whole = text.message.content
    answer = await client.chat.completions.create(**create, max_tokens=12, stop=["ZZ", whole[4:7]])
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == whole[: whole.index(whole[4:7])]


async def test_choices_differ_and_are_counted_with_one_prompt(served: Served) -> None:
    answer = await served.client().chat.completions.create(
        model=BASE, messages=HELLO, max_tokens=6, n=3, seed=11
    )
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert len({c.message.content for c in answer.choices}) == 3
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (PROMPT_TOKENS, 18)


async def test_streamed_choices_are_told_apart_by_index(served: Served) -> None:
    stream = await served.client().chat.completions.create(
        model=BASE, messages=HELLO, max_tokens=3, n=2, stream=True
    )
    texts = {0: "", 1: ""}
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert [len(t) for t in texts.values()] == [3, 3]


async def test_chat_logprobs_carry_tokens_and_bytes(served: Served) -> None:
    answer = await served.client().chat.completions.create(
        model=BASE, messages=HELLO, max_tokens=3, logprobs=True, top_logprobs=2
    )
    content = answer.choices[0].logprobs.content
    assert "".join(t.token for t in content) == answer.choices[0].message.content
    assert bytes(content[0].bytes).decode() == content[0].token
    assert [len(t.top_logprobs) for t in content] == [2, 2, 2]


async def test_token_ids_are_returned_on_request(served: Served) -> None:
    answer = await served.client().chat.completions.create(
        model=BASE, messages=HELLO, max_tokens=3, extra_body={"return_token_ids": True}
    )
    text = answer.choices[0].message.content
    assert answer.choices[0].token_ids == [token_of(c) for c in text]
    assert len(answer.prompt_token_ids) == PROMPT_TOKENS


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("ab", 1), (["ab", "cde"], 2), ([token_of("a"), token_of("b")], 1), ([[5, 6], [7]], 2)],
)
async def test_completions_take_texts_and_token_ids(
    served: Served, prompt: object, count: int
) -> None:
    answer = await served.client().completions.create(model=BASE, prompt=prompt, max_tokens=4)
    assert [c.index for c in answer.choices] == list(range(count))
    assert answer.usage.completion_tokens == 4 * count
    assert answer.usage.prompt_tokens == sum(len(r.prompt_ids) for r in served.engine.requests)


async def test_completion_stream_has_usage_and_logprobs(served: Served) -> None:
    stream = await served.client().completions.create(
        model="support",
        prompt="x",
        max_tokens=3,
        stream=True,
        logprobs=1,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    offsets = [c.choices[0].logprobs.text_offset[0] for c in chunks[:3]]
    assert offsets == [0, 1, 2]
    assert chunks[-1].usage.completion_tokens == 3


async def test_completion_without_max_tokens_makes_sixteen(served: Served) -> None:
    answer = await served.client().completions.create(model=BASE, prompt="x")
    assert answer.usage.completion_tokens == 16


@pytest.mark.parametrize(
    ("asked", "tier", "echoed"),
    [
        ("auto", "standard", "default"),
        ("flex", "batch", "flex"),
        ("priority", "interactive", "priority"),
    ],
)
async def test_service_tier_is_used_and_echoed(
    served: Served, asked: str, tier: str, echoed: str
) -> None:
    answer = await served.client().chat.completions.create(
        model=BASE, messages=HELLO, max_tokens=1, service_tier=asked
    )
    assert (answer.service_tier, served.engine.requests[0].tier) == (echoed, tier)


async def test_sampling_parameters_reach_the_engine(served: Served) -> None:
    await served.client().chat.completions.create(
        model=BASE,
        messages=HELLO,
        max_completion_tokens=7,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        seed=-4,
        stop="END",
        logit_bias={"5": -100},
        extra_body={
            "top_k": 40,
            "min_p": 0.05,
            "repetition_penalty": 1.1,
            "ignore_eos": True,
            "min_tokens": 2,
        },
    )
    sent = served.engine.requests[0].sampling
    assert (sent.max_tokens, sent.min_tokens, sent.seed, sent.stop) == (7, 2, -4, ("END",))
    assert (sent.temperature, sent.top_p, sent.top_k, sent.min_p) == (0.5, 0.9, 40, 0.05)
    assert (sent.presence_penalty, sent.frequency_penalty) == (0.1, 0.2)
    assert (sent.repetition_penalty, sent.ignore_eos) == (1.1, True)
    assert sent.logit_bias == ((5, -100.0),)


async def test_neutral_values_of_unsupported_parameters_are_accepted(served: Served) -> None:
    await served.client().chat.completions.create(
        model=BASE,
        messages=[*HELLO, {"role": "assistant", "content": "hi", "tool_calls": None}],
        max_tokens=1,
        tools=[],
        tool_choice="auto",
        response_format={"type": "text"},
        store=False,
        parallel_tool_calls=True,
        extra_body={"modalities": ["text"], "prediction": None},
    )


async def test_user_and_metadata_are_stored_with_the_usage(served: Served) -> None:
    await served.client().chat.completions.create(
        model="support", messages=HELLO, max_tokens=2, user="u1", metadata={"a": "b"}
    )
    [event] = await usage_of(served.app)
    assert (event.end_user, event.request_metadata) == ("u1", {"a": "b"})
    assert (event.region, event.adapter_version) == ("test-region", "acme-support")


async def test_answers_hold_what_the_document_says_and_nothing_else(served: Served) -> None:
    client, asked = served.client(), {"model": BASE, "max_tokens": 2}
    more = {"return_token_ids": True}
    chat = await client.chat.completions.create(
        messages=HELLO, logprobs=True, top_logprobs=1, extra_body=more, **asked
    )
    texts = await client.completions.create(prompt=["a", "b"], logprobs=1, extra_body=more, **asked)
    ChatCompletion.model_validate(chat.model_dump(exclude_unset=True))
    Completion.model_validate(texts.model_dump(exclude_unset=True))
