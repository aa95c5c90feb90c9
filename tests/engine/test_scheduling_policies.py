"""The baselines do what their names say, and hfs says why somebody waits."""

import pytest
from tests.sim.batching import heavy_tailed, run_to_end, waste_of
from tests.sim.simulator import SimulatedSlots

from loraplex_engine.messages import SamplingParams, TenantShare, Tier
from loraplex_engine.prefix_cache import PagedKv
from loraplex_engine.scheduling.config import SchedulerConfig
from loraplex_engine.scheduling.hfs import Hfs
from loraplex_engine.scheduling.policies import PolicyName, make_policy
from loraplex_engine.scheduling.policy import StepPlan
from loraplex_engine.scheduling.step_model import StepLoad
from loraplex_engine.sequence import Sequence


def make_sequence(
    name: str, num_prompt: int = 32, tier: Tier = "standard", **fields: object
) -> Sequence:
    return Sequence(
        request_id=name,
        prompt_ids=tuple(range(num_prompt)),
        sampling=SamplingParams(max_tokens=8),
        tenant=str(fields.pop("tenant", name)),
        arrival_s=0.0,
        tier=tier,
        **fields,  # type: ignore[arg-type]
    )


def make_hfs(num_blocks: int = 64, num_slots: int = 1, **limits: int) -> Hfs:
    slots = SimulatedSlots(num_slots, lambda adapter: 1.0)
    return Hfs(PagedKv(num_blocks, 4), slots, SchedulerConfig(**limits))  # type: ignore[arg-type]


def reason_after_a_step(policy: Hfs, seq: Sequence) -> str | None:
    policy.add(seq, 0.0)
    plan = policy.schedule(0.0)
    assert isinstance(policy.residency._slots, SimulatedSlots)
    for adapter in plan.loads:
        policy.residency._slots.load(adapter, 0.0)
    explained = policy.explain(seq, 0.0)
    assert (explained.reason is None) == (explained.expected_s is None)
    return explained.reason


def test_who_runs_does_not_wait() -> None:
    assert reason_after_a_step(make_hfs(), make_sequence("a")) is None


def test_missing_blocks_are_the_reason() -> None:
    policy = make_hfs(num_blocks=12)
    reason_after_a_step(policy, make_sequence("a"))
    assert reason_after_a_step(policy, make_sequence("b")) == "kv"


def test_a_load_and_a_slot_are_the_reason() -> None:
    policy = make_hfs()
    assert reason_after_a_step(policy, make_sequence("a", adapter="x")) == "loading"
    assert reason_after_a_step(policy, make_sequence("b", adapter="y")) == "slot"


def test_a_cap_is_the_reason_while_others_wait() -> None:
    policy = make_hfs(max_num_seqs=2)
    policy.set_share(TenantShare("a", max_running=1))
    reason_after_a_step(policy, make_sequence("a1", tenant="a"))
    capped = make_sequence("a2", tenant="a")
    policy.add(capped, 0.0)
    assert reason_after_a_step(policy, make_sequence("b")) is None
    policy.add(make_sequence("c"), 0.0)
    policy.admission.pick(policy.lanes[1], StepPlan(), 0.0, 99)
    assert policy.explain(capped, 0.0).reason == "quota"


def test_a_share_of_the_blocks_is_a_cap_while_others_wait() -> None:
    policy = make_hfs(num_blocks=128)
    policy.set_share(TenantShare("a", kv_share=0.1))  # 12.8 blocks
    for name in ("a1", "a2", "a3"):  # of eight blocks each
        assert reason_after_a_step(policy, make_sequence(name, tenant="a")) is None
    assert reason_after_a_step(policy, make_sequence("b", adapter="x")) == "loading"
    capped = make_sequence("a4", tenant="a")
    assert reason_after_a_step(policy, capped) == "quota"
    assert isinstance(policy.residency._slots, SimulatedSlots)
    policy.residency._slots.advance(1.0)  # the adapter is there: nobody waits any more
    policy.schedule(1.0)
    assert policy.explain(capped, 1.0).reason is None


def test_a_prefix_being_computed_is_the_reason() -> None:
    policy = make_hfs(max_num_batched_tokens=32)
    reason_after_a_step(policy, make_sequence("a", 100, tenant="t", cache_root=b"t"))
    assert policy.explain(make_sequence("unknown"), 0.0).reason is None
    waits = make_sequence("b", 100, tenant="t", cache_root=b"t")
    assert reason_after_a_step(policy, waits) == "prefix"


def test_a_prefix_is_waited_for_so_long_only_and_free_of_charge() -> None:
    policy = make_hfs(num_blocks=128, max_num_batched_tokens=32)
    reason_after_a_step(policy, make_sequence("a", 100, cache_root=b"t"))
    waits = make_sequence("b", 100, cache_root=b"t")
    reason_after_a_step(policy, waits)
    flow = policy._requests[waits].flow
    counter = flow.counter
    policy.schedule(policy.config.prefix_wait_s - 0.1)
    assert (policy.explain(waits, 0.0).reason, flow.counter) == ("prefix", counter)
    policy.schedule(policy.config.prefix_wait_s + 0.1)
    assert policy.explain(waits, 0.0).reason is None


@pytest.mark.parametrize(
    ("tier", "watermark", "num_running"),
    [
        ("interactive", 0.0, 9),  # of 32 + 8 tokens and a block each, in 400
        ("batch", 0.0, 9),
        ("interactive", 0.1, 8),
        ("standard", 0.1, 7),  # which leave a part to interactive ones
        ("batch", 0.1, 7),  # which leave twice the watermark
    ],
)
def test_a_part_of_the_blocks_is_promised_to_nobody(
    tier: Tier, watermark: float, num_running: int
) -> None:
    slots = SimulatedSlots(1, lambda adapter: 1.0)
    policy = Hfs(PagedKv(100, 4), slots, SchedulerConfig(watermark=watermark))
    for i in range(12):
        policy.add(make_sequence(f"r{i}", tier=tier), 0.0)
    policy.schedule(0.0)
    assert len(policy.running) == num_running


def test_the_tier_above_is_the_reason() -> None:
    policy = make_hfs(max_num_seqs=1)
    reason_after_a_step(policy, make_sequence("a", tier="interactive"))
    policy.add(make_sequence("b", tier="interactive"), 0.0)
    waits = make_sequence("c")
    assert reason_after_a_step(policy, waits) == "priority"
    assert policy.explain(waits, 0.0).ahead == 1


def on_a_slow_machine() -> Hfs:
    """Its steps take 50 ms whatever they compute, and 0.2 ms more for each token."""
    policy = make_hfs(num_blocks=4096)
    for num_tokens in range(1, 65):
        load = StepLoad()
        load.add(0, num_tokens)
        policy.model.observe(load, 0.05 + 0.0002 * num_tokens)
    return policy


@pytest.mark.parametrize(("tier", "fixed_parts"), [("standard", 6), ("batch", 2)])
def test_a_long_fixed_part_is_paid_for_by_more_tokens(tier: Tier, fixed_parts: int) -> None:
    """Unless it is batch work alone: whoever comes next would wait for it."""
    policy = on_a_slow_machine()
    policy.add(make_sequence("prompt", num_prompt=8_000, tier=tier), 0.0)
    plan = policy.schedule(0.0)
    assert plan.predicted_s == pytest.approx(fixed_parts * policy.model.base_s, rel=0.05)


def test_beside_streams_it_is_paid_for_with_fewer() -> None:
    policy = on_a_slow_machine()
    policy.add(make_sequence("stream", num_prompt=1, tier="interactive"), 0.0)
    policy.observe(policy.schedule(0.0), 0.1, 0.1)
    policy.add(make_sequence("prompt", num_prompt=8_000), 0.1)
    plan = policy.schedule(0.1)
    assert [item.num_tokens for item in plan.items if item.seq.request_id == "stream"] == [1]
    assert plan.predicted_s == pytest.approx(3 * policy.model.base_s, rel=0.05)


@pytest.mark.parametrize("name", ["fcfs", "priority", "static", "hfs"])
def test_a_step_in_flight_keeps_the_slot_and_blocks_of_who_ends(name: PolicyName) -> None:
    slots, kv = SimulatedSlots(1, lambda adapter: 0.0), PagedKv(64, 4)
    policy = make_policy(name, kv, slots, SchedulerConfig())
    slots.load("x", 0.0)
    slots.advance(0.0)
    seq = make_sequence("a", adapter="x")
    policy.add(seq, 0.0)
    plan = policy.schedule(0.0)
    assert [item.seq for item in plan.items] == [seq]
    for _ in range(2):  # idempotent
        policy.finish(seq, 0.1, is_cut=True)
        assert slots.users == {"x": 1}
        assert kv.num_free < 64
    policy.observe(plan, 0.2, 0.2)
    assert slots.users == {"x": 0}
    assert kv.num_free == 64


def test_static_batches_waste_what_the_formula_says() -> None:
    """B requests of output lengths L: a static batch takes L_max steps, B·L_max/ΣL as many as needed."""
    outputs, width = heavy_tailed(16 * 12, seed=0), 16
    waste = waste_of(outputs, width)
    assert waste.ratio == pytest.approx(waste.formula, rel=0.25)
    longest = [max(outputs[i : i + width]) for i in range(0, len(outputs), width)]
    steps = run_to_end("static", outputs, width).totals.steps
    assert steps == pytest.approx(sum(longest), rel=0.05)


@pytest.mark.parametrize("name", ["fcfs", "priority", "static", "hfs"])
def test_every_policy_finishes_everything(name: PolicyName) -> None:
    run = run_to_end(name, [5] * 30, 4)
    assert all(outcome.last_s is not None for outcome in run.outcomes)
    assert run.kv.num_free == run.kv.num_blocks


def test_priority_starts_the_higher_tier_first() -> None:
    policy = make_policy(
        "priority",
        PagedKv(64, 4),
        SimulatedSlots(1, lambda a: 0.0),
        SchedulerConfig(max_num_seqs=1),
    )
    for seq in (make_sequence("low", tier="batch"), make_sequence("high", tier="interactive")):
        policy.add(seq, 0.0)
    assert policy.schedule(0.0).items[0].seq.request_id == "high"
