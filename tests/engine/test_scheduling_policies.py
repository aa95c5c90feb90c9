"""The baselines do what their names say, and hfs says why somebody waits."""

import random

import pytest
from tests.sim.simulator import LinearSteps, SimulatedSlots, Simulation
from tests.sim.workloads import Arrival, Script, Workload

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
    return policy.explain(seq, 0.0).reason


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


def test_a_prefix_being_computed_is_the_reason() -> None:
    policy = make_hfs()
    reason_after_a_step(policy, make_sequence("a", 100, tenant="t", cache_root=b"t"))
    assert policy.explain(make_sequence("unknown"), 0.0).reason is None
    policy.lanes[1].prefills.update(policy.lanes[1].decodes)  # as if a chunk were still to come
    policy.admission.start_computing(next(iter(policy.lanes[1].decodes)))
    policy.admission._producers.update(
        dict.fromkeys(
            next(iter(policy.lanes[1].decodes)).seq.block_hashes,
            next(iter(policy.lanes[1].decodes)),
        )
    )
    assert (
        reason_after_a_step(policy, make_sequence("b", 100, tenant="t", cache_root=b"t"))
        == "prefix"
    )


def test_the_tier_above_is_the_reason() -> None:
    policy = make_hfs(max_num_seqs=1)
    reason_after_a_step(policy, make_sequence("a", tier="interactive"))
    policy.add(make_sequence("b", tier="interactive"), 0.0)
    waits = make_sequence("c")
    assert reason_after_a_step(policy, waits) == "priority"
    assert policy.explain(waits, 0.0).ahead == 1


def test_a_long_fixed_part_is_paid_for_by_more_tokens() -> None:
    """50 ms whatever the step computes: three times that beside streams, six times without."""
    policy = make_hfs(num_blocks=4096)
    model = policy.model
    for num_tokens in range(1, 65):
        load = StepLoad()
        load.add(0, num_tokens)
        model.observe(load, 0.05 + 0.001 * num_tokens)
    policy.add(make_sequence("prompt", num_prompt=8_000), 0.0)
    alone = policy.schedule(0.0)
    assert alone.predicted_s == pytest.approx(6 * model.base_s, rel=0.05)
    policy.observe(alone, alone.predicted_s, 0.3)
    policy.add(make_sequence("stream", num_prompt=1, tier="interactive"), 0.3)
    policy.observe(policy.schedule(0.3), 0.3, 0.6)
    beside = policy.schedule(0.6)
    assert [item.num_tokens for item in beside.items if item.seq.request_id == "stream"] == [1]
    assert beside.predicted_s == pytest.approx(3 * model.base_s, rel=0.05)


def run_to_end(name: PolicyName, outputs: list[int], width: int) -> Simulation:
    requests = tuple(Arrival(0.0, "t", "standard", 16, n) for n in outputs)
    run = Simulation(
        name,
        Workload((Script("t", requests),), max_tokens=max(outputs)),
        config=SchedulerConfig(max_num_seqs=width),
        steps=LinearSteps(base_s=0.001, per_token_s=0.0, per_context_s=0.0),
        num_tokens=80_000,
    )
    run.run(live_requests=len(outputs))
    return run


def test_static_batches_waste_what_the_formula_says() -> None:
    """B requests of output lengths L: a static batch takes L_max steps, B·L_max/ΣL as many as needed."""
    rng, width = random.Random(0), 16
    outputs = [min(1_000, max(1, round(rng.lognormvariate(4, 1)))) for _ in range(width * 12)]
    static, continuous = (run_to_end(n, outputs, width).totals.steps for n in ("static", "fcfs"))
    batches = [outputs[i : i + width] for i in range(0, len(outputs), width)]
    formula = sum(width * max(batch) for batch in batches) / sum(outputs)
    assert static == pytest.approx(sum(map(max, batches)), rel=0.05)
    assert static / continuous == pytest.approx(formula, rel=0.25)


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
