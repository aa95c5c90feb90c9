"""A step that is planned and launched while the one before is computed says what it says at once."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from tests.engine.tiny import make_model

from loraplex_adapters.store import AdapterStore
from loraplex_engine.build import LoadedModel, adapter_cache, build_engine, load_model
from loraplex_engine.config import EngineConfig
from loraplex_engine.core import Engine
from loraplex_engine.errors import InvalidConfig
from loraplex_engine.messages import Abort, Finished, Generate, SamplingParams, TokenEvent
from loraplex_engine.offline import NoText
from loraplex_engine.runner import ModelRunner, SampledTokens, StepHandle
from loraplex_engine.scheduling.policy import BlockCopy, StepPlan

PLAIN = SamplingParams(max_tokens=24, temperature=0.0)
SAMPLINGS = (
    PLAIN,
    replace(PLAIN, ignore_eos=True, logprobs=3),
    replace(PLAIN, temperature=1.0, seed=5, logprobs=2),
    replace(PLAIN, repetition_penalty=1.5, logprobs=1),
    replace(PLAIN, temperature=0.7, top_p=0.9, presence_penalty=1.0, frequency_penalty=0.5, seed=9),
    replace(PLAIN, stop_token_ids=tuple(range(60, 100)), min_tokens=6),
    replace(PLAIN, max_tokens=1),
    replace(PLAIN, max_tokens=2, repetition_penalty=1.3, temperature=1.0, seed=2),
)


class World(NamedTuple):
    config: EngineConfig
    model: LoadedModel
    store: AdapterStore

    @contextmanager
    def engine(self, steps_ahead: int, **change: Any) -> Iterator[Engine]:
        config = replace(self.config, steps_ahead=steps_ahead, **change)
        cache = adapter_cache(config, self.model, self.store)
        yield build_engine(config, self.model, cache, NoText())
        cache.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("ahead")
    make_model(folder)
    config = EngineConfig(
        model=folder,
        dtype="bfloat16",
        max_num_batched_tokens=32,
        cpu_kv_cache_bytes=2**20,
        threads=1,
    )
    return World(config, load_model(config), AdapterStore(folder / "store"))


def asked(name: str, sampling: SamplingParams = PLAIN, length: int = 20) -> Generate:
    prompt = tuple((int(name) * 31 + 7 * i) % 199 for i in range(length))
    return Generate(name, prompt, sampling, "acme", "p", "acme")


class Answer(NamedTuple):
    tokens: list[int]
    logprobs: list[Any]
    end: Finished


def answers(engine: Engine, *requests: Generate) -> dict[str, Answer]:
    """What each heard until nothing is left to do."""
    for request in requests:
        engine.submit(request)
    events = []
    while engine.has_work:
        events += engine.step()
    heard = {}
    for end in [event for event in events if isinstance(event, Finished)]:
        said = [e for e in events if isinstance(e, TokenEvent) and e.request_id == end.request_id]
        tokens = [token for event in said for token in event.token_ids]
        heard[end.request_id] = Answer(tokens, [p for e in said for p in e.logprobs], end)
    return heard


def test_every_way_of_sampling_says_the_same(world: World) -> None:
    """Prompts of one to three chunks, so that decodes and prefills share their steps."""
    requests = [
        asked(str(i), SAMPLINGS[i % len(SAMPLINGS)], length=5 + 9 * (i % 9)) for i in range(24)
    ]
    heard = []
    for steps_ahead in (0, 1):
        with world.engine(steps_ahead) as engine:
            heard.append(answers(engine, *requests))
            assert engine.stats().free_blocks == engine.stats().num_blocks
    at_once, ahead = heard
    assert ahead.keys() == at_once.keys()
    for name, (tokens, logprobs, end) in at_once.items():
        assert (ahead[name].tokens, ahead[name].logprobs) == (tokens, logprobs), name
        assert ahead[name].end.finish_reason == end.finish_reason
        assert ahead[name].end.completion_tokens == end.completion_tokens == len(tokens)
    reasons = {answer.end.finish_reason for answer in at_once.values()}
    assert reasons == {"stop", "length"}, "the test does not test"


class Watch:
    """Which calls the runner gets, in their order."""

    def __init__(self, runner: ModelRunner) -> None:
        self.calls: list[str] = []
        self._launch, self._collect = runner.launch, runner.collect
        runner.launch = self.launch  # type: ignore[method-assign]
        runner.collect = self.collect  # type: ignore[method-assign]

    def launch(self, plan: StepPlan) -> StepHandle:
        self.calls.append("launch")
        return self._launch(plan)

    def collect(self, handle: StepHandle) -> list[SampledTokens]:
        self.calls.append("collect")
        return self._collect(handle)


def test_a_step_is_planned_while_the_device_works(world: World) -> None:
    """The device is held until the second step has been launched."""
    with world.engine(1) as engine:
        watch, may_work = Watch(engine.runner), threading.Event()
        forward = world.model.decoder.forward

        def held(*args: Any) -> torch.Tensor | None:
            may_work.wait()
            return forward(*args)

        engine.runner.decoder = type("Held", (), {"forward": staticmethod(held)})()
        engine.submit(asked("1"))
        assert engine.step() == []
        assert watch.calls == ["launch"]
        launch = watch._launch

        def launch_and_let_go(plan: StepPlan) -> StepHandle:
            handle = launch(plan)
            may_work.set()
            return handle

        watch._launch = launch_and_let_go
        engine.step()
        assert watch.calls == ["launch", "launch", "collect"]
        answers(engine)


def test_a_token_computed_for_a_sequence_that_has_ended_is_not_billed(world: World) -> None:
    with world.engine(0) as engine:
        said = answers(engine, asked("1", replace(PLAIN, ignore_eos=True)))["1"].tokens
    stopping = replace(PLAIN, stop_token_ids=(said[4],), ignore_eos=True)
    assert said[4] not in said[:4]
    with world.engine(1) as engine:
        heard = answers(engine, asked("1", stopping))["1"]
        tokens = engine.stats().tokens
    assert (heard.tokens, heard.end.finish_reason) == (said[:5], "stop")
    assert (tokens.completion, tokens.discarded) == (5, 1)


def test_an_abort_waits_for_the_step_in_flight(world: World) -> None:
    with world.engine(1) as engine:
        engine.submit(asked("1"))
        engine.step()
        engine.submit(Abort("1"))
        heard = answers(engine)["1"]
        assert (heard.tokens, heard.end.finish_reason) == ([], "abort")
        assert engine.stats().free_blocks == engine.stats().num_blocks


@pytest.mark.parametrize("which", range(5))
def test_a_step_that_goes_wrong_leaves_nothing_wrong_behind(world: World, which: int) -> None:
    """A long prompt in chunks; one of its first steps fails while the next one is in flight."""
    with world.engine(0) as engine:
        right = answers(engine, asked("1", length=90), asked("2", length=40))
    with world.engine(1) as engine:
        forward, left = world.model.decoder.forward, [which]

        def fail_once(*args: Any) -> torch.Tensor | None:
            left[0] -= 1
            if left[0] == -1:
                raise RuntimeError("the device is out of order")
            return forward(*args)

        engine.runner.decoder = type("Failing", (), {"forward": staticmethod(fail_once)})()
        hurt = answers(engine, asked("1", length=90))["1"]
        assert hurt.end.error == "internal"
        again = answers(engine, asked("1", length=90), asked("2", length=40))
    assert {name: heard.tokens for name, heard in again.items()} == {
        name: heard.tokens for name, heard in right.items()
    }


def test_a_copy_that_goes_wrong_ends_the_engine(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KV that nobody can trust is told to nobody."""
    with world.engine(1) as engine:

        def fail(*_: object) -> None:
            raise RuntimeError("no such memory")

        def go_on() -> None:
            engine.runner.copy_blocks([BlockCopy(0, 0, "to_host")])
            answers(engine)

        monkeypatch.setattr(engine.runner.device, "copy_blocks", fail)
        engine.submit(asked("1"))
        engine.step()
        with pytest.raises(RuntimeError, match="no such memory"):
            go_on()


@pytest.mark.parametrize("change", [{"steps_ahead": 2}, {"scheduling_policy": "fcfs"}])
def test_only_the_policy_that_knows_how_looks_ahead(world: World, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match="steps_ahead"):
        replace(world.config, **{"steps_ahead": 1} | change)
