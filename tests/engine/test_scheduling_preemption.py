"""Who makes way for whom, and at what price: copies ahead, requests that end, batch work that slows."""

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from tests.engine.scripted import Scripted, request
from tests.sim.simulator import LinearSteps, Simulation
from tests.sim.workloads import Arrival, Backlog, Script, Workload

from loraplex_engine.messages import Tier
from loraplex_engine.scheduling.admission import Admission
from loraplex_engine.scheduling.config import SchedulerConfig
from loraplex_engine.scheduling.hfs import Hfs
from loraplex_engine.scheduling.policy import StepPlan


def one_that_makes_way(abort_tiers: tuple[Tier, ...]) -> Scripted:
    """Batch work of ten blocks meets a live request that needs twelve of sixteen."""
    world = Scripted(policy="hfs", abort_tiers=abort_tiers)
    world.engine.submit(replace(request("b", "b" * 20, max_tokens=20), tier="batch"))
    for _ in range(4):
        world.step()
    world.run(replace(request("i", "i" * 40, max_tokens=8), tier="interactive"))
    world.check_books()
    assert world.kv.num_free == world.kv.num_blocks
    assert world.finished("i").finish_reason == "length"
    return world


def test_a_preempted_request_of_a_tier_that_chose_so_ends_and_says_why() -> None:
    ended = one_that_makes_way(("batch",)).finished("b")
    assert (ended.finish_reason, ended.error) == ("error", "overloaded")
    assert 0 < ended.completion_tokens < 20
    assert ended.recomputed_tokens == 0


def test_a_preempted_request_of_another_tier_goes_on() -> None:
    ended = one_that_makes_way(("standard",)).finished("b")
    assert (ended.finish_reason, ended.completion_tokens) == ("length", 20)


class Copies(NamedTuple):
    """Blocks that went to the host before anybody was preempted, for it, and came back."""

    ahead: int
    parked: int
    back: int
    recomputed: int


def copies_of_a_preemption(**change: Any) -> Copies:
    """Batch work of 400 + 400 tokens makes way for 1,200 in 100 blocks of 16."""
    ahead = parked = back = 0

    def note(run: Simulation, plan: StepPlan, seconds: float) -> None:
        nonlocal ahead, parked, back
        out = sum(copy.direction == "to_host" for copy in plan.copies)
        back += len(plan.copies) - out
        if plan.preemptions:
            parked += out
        elif run.totals.preemptions == 0:
            ahead += out

    tenants = (
        Script("batch", (Arrival(0.0, "batch", "batch", 400, 400),)),
        Script("live", (Arrival(1.0, "live", "interactive", 1200, 20),)),
    )
    config = replace(SchedulerConfig(num_host_blocks=100), **change)
    run = Simulation(
        "hfs",
        Workload(tenants, max_tokens=400),
        config=config,
        num_tokens=1600,
        steps=LinearSteps(),
        on_step=note,
    )
    run.run(until_s=30.0)
    assert run.totals.preemptions == 1
    assert not run.lives, "all ended"
    return Copies(ahead, parked, back, run.totals.recomputed_tokens)


def test_blocks_of_batch_work_are_copied_while_it_runs() -> None:
    copies = copies_of_a_preemption()
    assert copies.ahead > 25
    assert copies.parked <= 2, "the one that is filled, and the one that has just been"
    assert copies.back == copies.ahead + copies.parked
    assert copies.recomputed == 0


def test_without_copies_ahead_they_are_all_due_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hfs, "_checkpoint", lambda self, draft: None)
    copies = copies_of_a_preemption()
    assert copies.ahead == 0
    assert copies.parked > 25


@pytest.mark.parametrize(
    "change", [{"copy_s_per_block": 1.0}, {"num_host_blocks": 5}, {"num_host_blocks": 0}]
)
def test_what_is_dear_to_bring_back_is_computed_again(change: dict[str, float]) -> None:
    copies = copies_of_a_preemption(**change)
    assert copies.back == 0
    assert copies.recomputed > 400


def step_with_batch_work(num_streams: int) -> float:
    """The longest beside live streams that need 500 tokens of KV each, of 10,000; 0: none at all."""
    streams = tuple(Arrival(0.0, "live", "interactive", 100, 400) for _ in range(num_streams))
    longest_s = 0.0

    def note(run: Simulation, plan: StepPlan, seconds: float) -> None:
        nonlocal longest_s
        if any(item.seq.tier == "batch" for item in plan.items):
            longest_s = max(longest_s, seconds)

    run = Simulation(
        "hfs",
        Workload((Script("live", streams),), (Backlog(),), max_tokens=400),
        num_tokens=10_000,
        steps=LinearSteps(),
        on_step=note,
    )
    run.run(until_s=1.5)
    assert run.num_live_finished == 0, "they are all still there"
    return longest_s


def test_batch_work_slows_and_stops_as_live_work_comes_to_need_the_blocks() -> None:
    free, narrow, closed = map(step_with_batch_work, (6, 11, 15))
    fill_step_s = SchedulerConfig().fill_step_s
    assert free == pytest.approx(fill_step_s, rel=0.1)
    assert narrow == pytest.approx(fill_step_s / 2, rel=0.15)  # half of the gate is closed
    assert closed == 0


def preemptions_of_a_crowd() -> int:
    """Four tenants, each with more waiting than fits: how often one's blocks are taken for another."""
    tenants = tuple(
        Script(
            name,
            tuple(
                Arrival(0.0, name, "standard", 100 + 7 * i % 150, 20 + 37 * i % 220)
                for i in range(60)
            ),
        )
        for name in "abcd"
    )
    run = Simulation(
        "hfs", Workload(tenants, max_tokens=256), num_tokens=8_000, steps=LinearSteps()
    )
    run.run(live_requests=240)
    return run.totals.preemptions


def test_forecasts_spare_a_crowd_most_preemptions(monkeypatch: pytest.MonkeyPatch) -> None:
    forecast = preemptions_of_a_crowd()
    monkeypatch.setattr(Admission, "has_memory", lambda self, request: True)
    assert 10 * forecast < preemptions_of_a_crowd()
