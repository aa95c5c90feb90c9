"""Any order of loads, drops, pins and aborts: every answer is that of the version that was asked."""

import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from tests.engine.adapter_world import GREEDY, LONG, NUM_ADAPTERS, World, make_world

from loraplex_engine.messages import (
    Abort,
    DropAdapter,
    Finished,
    PinAdapter,
    PreloadAdapter,
    TokenEvent,
)
from loraplex_engine.offline import Prompt, generate

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:peft.*"),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


class EngineLife(RuleBasedStateMachine):
    """Whatever is loaded, dropped, pinned and aborted meanwhile: each answer is its version's own."""

    world: World
    expected: dict[tuple[str | None, int], list[int]]

    @initialize(max_loras=st.integers(1, 3), host_bytes=st.sampled_from([0, 20_000, 2**21]))
    def start(self, max_loras: int, host_bytes: int) -> None:
        self.run = self.world.engine(max_loras=max_loras, max_cpu_lora_bytes=host_bytes)
        self.engine = self.run.offline.engine
        self.asked: dict[str, tuple[str | None, int]] = {}
        self.said: dict[str, list[int]] = {}
        self.ended: dict[str, str] = {}

    @rule(which=st.integers(-1, NUM_ADAPTERS - 1), length=st.sampled_from([3, 20, 40]))
    def ask(self, which: int, length: int) -> None:
        adapter = None if which < 0 else self.world.versions[which]
        request_id = f"r{len(self.asked)}"
        self.asked[request_id], self.said[request_id] = (adapter, length), []
        prompt = Prompt(LONG[:length], adapter=adapter, sampling=GREEDY)
        self.engine.submit(generate(request_id, prompt))

    @rule(which=st.integers(0, NUM_ADAPTERS - 1))
    def load(self, which: int) -> None:
        self.engine.submit(PreloadAdapter(self.world.versions[which], "offline"))

    @rule(which=st.integers(0, NUM_ADAPTERS - 1))
    def evict(self, which: int) -> None:
        self.engine.submit(DropAdapter(self.world.versions[which]))

    @rule(which=st.integers(0, NUM_ADAPTERS - 1), pinned=st.booleans())
    def pin(self, which: int, pinned: bool) -> None:
        self.engine.submit(PinAdapter(self.world.versions[which], "offline", pinned))

    @rule(which=st.integers(0, 40))
    def abort(self, which: int) -> None:
        self.engine.submit(Abort(f"r{which}"))

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            for event in self.engine.step():
                if isinstance(event, TokenEvent):
                    self.said[event.request_id] += event.token_ids
                elif isinstance(event, Finished):
                    assert event.request_id not in self.ended
                    self.ended[event.request_id] = event.finish_reason
            if self.engine.is_stalled:
                time.sleep(0.001)

    @invariant()
    def holds_together(self) -> None:
        if hasattr(self, "run"):
            self.run.cache.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "run"):
            return
        deadline = time.monotonic() + 60
        while self.engine.has_work:
            self.step(1)
            assert time.monotonic() < deadline, "somebody waits for ever"
        self.run.cache.close()
        assert self.ended.keys() == self.asked.keys()
        for request_id, key in self.asked.items():
            expected, said = self.expected[key], self.said[request_id]
            if self.ended[request_id] == "abort":
                assert said == expected[: len(said)]
            else:
                assert (self.ended[request_id], said) == ("length", expected)


def test_every_answer_is_that_of_the_version_that_was_asked(world: World) -> None:
    lengths = (3, 20, 40)
    expected: dict[tuple[str | None, int], list[int]] = {}
    with world.engine(max_loras=NUM_ADAPTERS) as run:
        for adapter in (None, *world.versions):
            prompts = [Prompt(LONG[:n], adapter=adapter, sampling=GREEDY) for n in lengths]
            answers = run.say(*prompts)
            expected |= {(adapter, n): a for n, a in zip(lengths, answers, strict=True)}

    class Life(EngineLife):
        pass

    Life.world, Life.expected = world, expected
    run_state_machine_as_test(
        Life, settings=settings(max_examples=15, stateful_step_count=30, deadline=None)
    )
