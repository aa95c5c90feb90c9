"""In bfloat16 an answer does not depend on its neighbours, and hanging up leaves nothing behind."""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.engine.smollm2 import TARGETS, Chat, Engine, Question, make_engine

from loraplex_engine.messages import Abort, Finished, Generate, SamplingParams, TokenEvent

pytestmark = pytest.mark.slow

NUM_STREAMS = 64
NUM_TOKENS = 16
TENANTS = ("acme", "globex", "initech")
PROMPTS = (
    "What is the tallest mountain in Europe?",
    "How many planes are there per airline?",
    "My dog does not eat. What can I do?",
)


class Stream(NamedTuple):
    request: Generate
    arrives: int  # before this step
    hangs_up_after: int | None  # tokens, 0 while it still waits; None: stays to the end


class Heard(NamedTuple):
    token_ids: list[int]
    finished: list[Finished]


def request_of(engine: Engine, question: Question, request_id: str, tenant: str) -> Generate:
    """Every second question is sampled, with a seed of its own, the others are greedy."""
    is_sampled = len(question.prompt_ids) % 2
    return Generate(
        request_id=request_id,
        prompt_ids=question.prompt_ids,
        sampling=SamplingParams(
            max_tokens=NUM_TOKENS, temperature=float(is_sampled), seed=11, ignore_eos=True
        ),
        tenant=tenant,
        project="default",
        cache_scope=tenant,
        adapter=engine.versions[question.target],
    )


def serve(engine: Engine, streams: list[Stream]) -> dict[str, Heard]:
    """What each stream heard; those that hang up are aborted between two steps."""
    core, step = engine.offline.engine, 0
    waiting = {s.request.request_id: s for s in streams}
    patience = {s.request.request_id: s.hangs_up_after for s in streams}
    heard = {request_id: Heard([], []) for request_id in waiting}
    while waiting or core.has_work:
        for request_id in [r for r, s in waiting.items() if s.arrives <= step]:
            core.submit(waiting.pop(request_id).request)
            if patience[request_id] == 0:
                core.submit(Abort(request_id))
        for event in core.step():
            if isinstance(event, Finished):
                heard[event.request_id].finished.append(event)
            elif isinstance(event, TokenEvent):
                tokens = heard[event.request_id].token_ids
                tokens += event.token_ids
                if len(tokens) == patience[event.request_id]:
                    core.submit(Abort(event.request_id))
        if core.is_stalled:
            time.sleep(0.001)  # an adapter is being loaded
        step += 1
    return heard


@pytest.fixture(scope="module")
def engine(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Two slots for three adapters, so that streams also wait for one another's adapters."""
    store = tmp_path_factory.mktemp("store")
    engine = make_engine(demo_model, store, "bfloat16", max_loras=2, records_logits=False)
    yield engine
    engine.adapters.close()


def test_survivors_among_64_streams_get_their_solo_tokens(engine: Engine, demo_model: Path) -> None:
    chat, rng = Chat(demo_model), random.Random(3)
    questions = [Question(target, chat.encode(text)) for text in PROMPTS for target in TARGETS]
    alone = []
    for i, question in enumerate(questions):
        request = request_of(engine, question, f"alone-{i}", "nobody else")
        alone.append(serve(engine, [Stream(request, 0, None)])[request.request_id].token_ids)

    streams, chosen = [], []
    for i in range(NUM_STREAMS):
        chosen.append(rng.randrange(len(questions)))
        request = request_of(engine, questions[chosen[i]], f"stream-{i}", TENANTS[i % 3])
        leaves = rng.randrange(NUM_TOKENS - 1) if i % 3 == 0 else None
        streams.append(Stream(request, rng.randrange(30), leaves))
    rng.shuffle(streams)
    heard = serve(engine, streams)

    for stream in streams:
        request_id = stream.request.request_id
        tokens, finished = heard[request_id]
        solo = alone[chosen[int(request_id.removeprefix("stream-"))]]
        leaves = stream.hangs_up_after
        assert [f.finish_reason for f in finished] == ["length" if leaves is None else "abort"]
        assert tokens == solo[: len(tokens)]
        assert len(tokens) == (NUM_TOKENS if leaves is None else leaves)


def test_nothing_is_held_when_all_streams_are_gone(engine: Engine, demo_model: Path) -> None:
    chat = Chat(demo_model)
    streams = [
        Stream(
            request_of(engine, Question(target, chat.encode(text)), f"{target}-{i}", "acme"), i, i
        )
        for i, text in enumerate(PROMPTS)
        for target in TARGETS
    ]
    serve(engine, streams)
    stats = engine.offline.engine.stats()
    assert (stats.running, stats.waiting, stats.sequences) == (0, 0, ())
    assert stats.free_blocks == stats.num_blocks
    engine.adapters.check_integrity()
    for version in engine.adapters.resident:
        engine.adapters.drop(version)  # those in use would stay
    assert engine.adapters.num_free_slots == stats.num_slots
