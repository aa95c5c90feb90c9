"""Aborts, preemptions, offloads and reloads in any order: nothing leaks, and no token changes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from tests.engine.tiny import ALL_MODULES, make_adapter, make_model

from loraplex_adapters.cache import AdapterCache
from loraplex_adapters.layout import BaseModel
from loraplex_adapters.manifest import Limits
from loraplex_adapters.store import AdapterStore
from loraplex_engine.build import LoadedModel, build_engine, load_model
from loraplex_engine.config import EngineConfig
from loraplex_engine.core import Engine
from loraplex_engine.messages import (
    TIERS,
    Abort,
    Event,
    Finished,
    Generate,
    SamplingParams,
    TokenEvent,
)
from loraplex_engine.model.decoder import projection_layout
from loraplex_engine.offline import NoText
from loraplex_engine.scheduling.hfs import Hfs

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
BLOCK_BYTES = 2 * 3 * 2 * 16 * 8 * 2  # keys and values, layers, heads, tokens, dimensions, bf16
NUM_BLOCKS = 10


class World(NamedTuple):
    """A tiny model in bf16 and where its adapters lie; engines over it are made in no time."""

    config: EngineConfig
    model: LoadedModel
    store: AdapterStore
    versions: list[str]

    @contextmanager
    def engine(self, **change: object) -> Iterator[Engine]:
        config = replace(self.config, **change)  # type: ignore[arg-type]
        adapters = AdapterCache(
            self.store,
            projection_layout(self.model.config),
            max_loras=config.max_loras,
            max_lora_rank=config.max_lora_rank,
            dtype=self.model.dtype,
            device=self.model.device.torch_device,
            host_bytes=2**20,
        )
        yield build_engine(config, self.model, adapters, NoText())
        adapters.close()


@pytest.fixture(scope="module", params=[0, 1], ids=["at-once", "ahead"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("disturbed")
    base = make_model(folder)
    config = EngineConfig(
        model=folder,
        dtype="bfloat16",
        max_num_seqs=6,
        max_num_batched_tokens=48,
        max_lora_rank=8,
        max_loras=1,
        cpu_kv_cache_bytes=NUM_BLOCKS * BLOCK_BYTES,
        host_kv_bytes=2 * NUM_BLOCKS * BLOCK_BYTES,
        threads=1,
        steps_ahead=request.param,
    )
    model = load_model(config)
    layout = projection_layout(model.config)
    store = AdapterStore(folder / "store")
    versions = []
    for seed in range(2):
        make_adapter(base, folder / str(seed), rank=8, alpha=8, modules=ALL_MODULES, seed=seed)
        limits = Limits(max_rank=8)
        put = store.put(
            folder / str(seed), base=BaseModel.from_projections(None, layout), limits=limits
        )
        versions.append(put.version)
    return World(config, model, store, versions)


def tokens_of(engine: Engine) -> Iterator[TokenEvent | Finished]:
    """Steps until nothing is left."""
    for _ in range(5000):
        if not engine.has_work:
            return
        for event in engine.step():
            if isinstance(event, TokenEvent | Finished):
                yield event
        if engine.is_stalled:
            time.sleep(0.001)
    raise AssertionError("the engine does not come to an end")


class Disturbance(RuleBasedStateMachine):
    """Ten blocks, one adapter slot; each sequence alone may need half of the blocks."""

    world: World
    totals: dict[str, int]

    def __init__(self) -> None:
        super().__init__()
        self._context = self.world.engine()
        self.engine = self._context.__enter__()
        assert isinstance(self.engine.policy, Hfs)
        self.policy = self.engine.policy
        self.sent: dict[str, Generate] = {}
        self.said: dict[str, list[int]] = {}
        self.ends: dict[str, Finished] = {}

    @rule(
        start=st.integers(0, 2),
        length=st.integers(1, 60),
        max_tokens=st.integers(1, 20),
        tier=st.sampled_from(TIERS),
        tenant=st.sampled_from(["acme", "globex"]),
        adapter=st.sampled_from([None, 0, 1]),
    )
    def submit(
        self, start: int, length: int, max_tokens: int, tier: str, tenant: str, adapter: int | None
    ) -> None:
        name = str(len(self.sent))
        request = Generate(
            request_id=name,
            prompt_ids=tuple((start + 7 * i) % 199 for i in range(length)),
            sampling=SamplingParams(max_tokens=max_tokens, seed=start, ignore_eos=True),
            tenant=tenant,
            project="p",
            cache_scope=tenant,
            tier=tier,  # type: ignore[arg-type]
            adapter=None if adapter is None else self.world.versions[adapter],
        )
        self.sent[name] = request
        self.engine.submit(request)

    @rule(which=st.integers(0, 30))
    def abort(self, which: int) -> None:
        self.engine.submit(Abort(str(which)))

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            self._take(self.engine.step())

    @rule(copy_s=st.sampled_from([1e-9, 1e9]))
    def price_copies(self, copy_s: float) -> None:
        """Copies become so cheap that all are made, or so dear that none is."""
        preemptor = self.policy.preemptor
        preemptor.config = replace(preemptor.config, copy_s_per_block=copy_s)

    @rule(slack_s=st.sampled_from([0.0, 1e9]))
    def price_time(self, slack_s: float) -> None:
        """Streams lend their adapter's slot at every turn, or never."""
        residency = self.policy.residency
        residency._config = replace(residency._config, lend_slack_s=slack_s, max_pause_s=0.0)

    @invariant()
    def books_are_right(self) -> None:
        live = [*self.policy.running, *self.policy.waiting, *self.policy._leaving]
        self.engine.kv.check_integrity(live)  # type: ignore[attr-defined]

    def teardown(self) -> None:
        self.price_time(1e9)  # at one token a turn the end would be far
        self._take(tokens_of(self.engine))
        assert self.ends.keys() == self.sent.keys()
        assert self.engine.kv.num_free == NUM_BLOCKS
        host = self.policy.preemptor.host.pool
        assert host.num_free == host.num_blocks
        assert self.policy.residency.num_users == {}
        self.totals["preemptions"] += self.engine.stats().preemptions
        self._context.__exit__(None, None, None)
        self._compare()

    def _compare(self) -> None:
        """Each sequence alone, in an engine with room for all."""
        roomy = {
            "cpu_kv_cache_bytes": 64 * BLOCK_BYTES,
            "scheduling_policy": "fcfs",
            "steps_ahead": 0,
        }
        with self.world.engine(**roomy) as engine:
            for name, request in self.sent.items():
                engine.submit(request)
                alone = [t for e in tokens_of(engine) for t in getattr(e, "token_ids", ())]
                said = self.said.get(name, [])
                if self.ends[name].finish_reason == "abort":
                    assert said == alone[: len(said)]
                else:
                    assert (self.ends[name].finish_reason, said) == ("length", alone)

    def _take(self, events: object) -> None:
        for event in events:  # type: ignore[attr-defined]
            match event:
                case TokenEvent(request_id, token_ids):
                    self.said.setdefault(request_id, []).extend(token_ids)
                case Finished(request_id):
                    self.ends[request_id] = event


def disturb(world: World, examples: int, steps: int) -> dict[str, int]:
    totals = {"preemptions": 0}

    class Here(Disturbance):
        pass

    Here.world, Here.totals = world, totals
    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return totals


def test_tokens_are_those_of_an_undisturbed_run(world: World) -> None:
    disturb(world, examples=4, steps=25)


@pytest.mark.slow
def test_tokens_are_those_of_an_undisturbed_run_however_long_it_is_tried(world: World) -> None:
    totals = disturb(world, examples=20, steps=40)
    assert totals["preemptions"] > 0, "the test does not test"


def said_by(events: list[TokenEvent | Finished]) -> dict[str, list[int]]:
    said: dict[str, list[int]] = {}
    for event in events:
        if isinstance(event, TokenEvent):
            said.setdefault(event.request_id, []).extend(event.token_ids)
    return said


def test_streams_that_take_turns_on_a_slot_say_what_each_says_alone(world: World) -> None:
    requests = [
        Generate(
            str(number),
            tuple(range(number, number + 20)),
            SamplingParams(max_tokens=40, seed=3, ignore_eos=True),
            *("acme", "p", "acme"),
            tier="interactive",
            adapter=version,
        )
        for number, version in enumerate(world.versions)
    ]
    with world.engine() as engine:
        assert isinstance(engine.policy, Hfs)
        residency = engine.policy.residency
        residency._config = replace(residency._config, lend_slack_s=0.0, max_pause_s=0.0)
        for request in requests:
            engine.submit(request)
        together, pauses = [], 0
        while engine.has_work:
            events = engine.step()
            together += [e for e in events if isinstance(e, TokenEvent | Finished)]
            pauses += bool(residency.paused)
            if engine.is_stalled:
                time.sleep(0.001)
        alone = []
        for request in requests:
            engine.submit(request)
            alone += tokens_of(engine)
    assert pauses > 10, "the test does not test"
    assert said_by(together) == said_by(alone)


def batch_work_meets_live_work(engine: Engine) -> list[Event]:
    """Batch work fills the cache; live work takes its blocks."""
    assert isinstance(engine.policy, Hfs)
    preemptor = engine.policy.preemptor
    preemptor.config = replace(preemptor.config, copy_s_per_block=1e-9)
    long = tuple(range(1, 60))
    sampling = SamplingParams(max_tokens=70, temperature=0.0, ignore_eos=True)
    engine.submit(Generate("batch", long, sampling, "acme", "p", "acme", tier="batch"))
    events = [event for _ in range(12) for event in engine.step()]
    live = Generate("live", long[::-1], sampling, "globex", "p", "globex", tier="interactive")
    engine.submit(live)
    return [*events, *tokens_of(engine)]


def test_offloaded_work_is_brought_back_and_goes_on_where_it_was(world: World) -> None:
    with world.engine() as engine:
        events = batch_work_meets_live_work(engine)
        stats = engine.stats()
    said = [t for e in events if isinstance(e, TokenEvent) for t in e.token_ids]
    ends = {e.request_id: e for e in events if isinstance(e, Finished)}
    assert stats.scheduler.offloads == stats.preemptions >= 1
    assert ends["batch"].recomputed_tokens == 0
    assert ends["batch"].completion_tokens == ends["live"].completion_tokens == 70
    assert len(said) == 140


def test_preempted_work_of_a_tier_that_chose_so_ends_and_leaves_all(world: World) -> None:
    with world.engine(abort_preempted="batch") as engine:
        ends = {
            event.request_id: event
            for event in batch_work_meets_live_work(engine)
            if isinstance(event, Finished)
        }
        assert engine.kv.num_free == NUM_BLOCKS
    assert (ends["batch"].finish_reason, ends["batch"].error) == ("error", "overloaded")
    assert 0 < ends["batch"].completion_tokens < 70
    assert ends["live"].completion_tokens == 70
