"""What the statistics say of attainment, goodput, tiers' time and turns, on runs whose numbers are known."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.engine.memory_adapters import MemoryAdapters
from tests.engine.scripted import Scripted, request

from loraplex_engine.messages import TIERS, Abort, Generate, PromiseStats, Tier
from loraplex_engine.scheduling.flows import Flow
from loraplex_engine.scheduling.hfs import Hfs
from loraplex_engine.scheduling.policy import StepPlan


def paced(step_s: float, **change: Any) -> Scripted:
    """Each step lasts `step_s`."""
    world = Scripted(**{"policy": "hfs", "num_blocks": 256, "max_num_batched_tokens": 64} | change)
    launch = world.runner.launch

    def launch_and_wait(plan: StepPlan) -> StepPlan:
        world.clock.now += step_s
        return launch(plan)

    world.runner.launch = launch_and_wait  # type: ignore[method-assign]
    return world


def of(tier: Tier, name: str, **change: Any) -> Generate:
    return replace(request(name, max_tokens=change.pop("max_tokens", 5)), tier=tier, **change)


def promises(world: Scripted) -> Mapping[Tier, PromiseStats]:
    return {seen.tier: seen for seen in world.engine.stats().promises}


def test_a_tier_that_is_served_in_time_keeps_both_promises() -> None:
    """Steps of 20 ms: the first token after 20, the others each 20."""
    world = paced(0.02)
    world.run(of("interactive", "i"), of("standard", "s"), of("batch", "b"))
    assert promises(world) == {
        "interactive": PromiseStats("interactive", 1, 1, 1, 1, 5),
        "standard": PromiseStats("standard", 1, 1, 1, 1, 5),
    }


@pytest.mark.parametrize(
    ("step_s", "tier", "max_tokens", "kept"),
    [
        (0.08, "interactive", 5, (1, 0, 0, 0)),  # 50 ms a token were promised
        (0.08, "standard", 5, (1, 1, 1, 5)),  # 100 ms
        (0.08, "interactive", 1, (1, 1, 1, 1)),  # one token has no pace
        (0.6, "interactive", 1, (0, 1, 0, 0)),  # half a second
        (4.0, "standard", 5, (0, 0, 0, 0)),
    ],
)
def test_what_is_late_is_counted_by_what_was_late(
    step_s: float, tier: Tier, max_tokens: int, kept: tuple[int, ...]
) -> None:
    world = paced(step_s)
    world.run(of(tier, "r", max_tokens=max_tokens))
    assert promises(world)[tier] == PromiseStats(tier, 1, *kept)


def test_lack_of_time_is_a_promise_broken_and_hanging_up_is_none() -> None:
    world = paced(0.02)
    world.run(of("standard", "kept"))
    world.engine.submit(of("standard", "ended", max_tokens=50, remaining_s=0.5))
    world.engine.submit(of("standard", "left", max_tokens=50))
    world.engine.submit(of("standard", "wrong", max_tokens=0))
    world.step()
    world.engine.submit(Abort("left"))
    world.run()
    assert world.finished("ended").error == "timeout"
    assert promises(world)["standard"] == PromiseStats("standard", 2, 2, 2, 1, 5)


def test_a_steps_time_is_shared_out_by_tokens() -> None:
    """One step of 90 ms and more: ten tokens of a live prompt, twenty of batch work."""
    world = paced(0.09)
    world.engine.submit(replace(request("live", "x" * 10, max_tokens=1), tier="standard"))
    world.engine.submit(replace(request("batch", "y" * 20, max_tokens=1), tier="batch"))
    world.step()
    busy_s = dict(world.engine.stats().busy_s)
    assert busy_s.keys() == set(TIERS)
    assert busy_s["interactive"] == 0.0
    assert busy_s["standard"] == pytest.approx(0.03, abs=0.001)
    assert busy_s["batch"] == pytest.approx(0.06, abs=0.002)


def test_streams_far_ahead_lend_their_slot_once() -> None:
    """One slot; a fast stream of one adapter, then a request for the other."""
    world = paced(0.001, adapters=MemoryAdapters(("a", "b"), num_slots=1))
    world.engine.submit(of("standard", "first", adapter="a", max_tokens=200))
    for _ in range(50):
        world.step()
    assert world.engine.stats().scheduler.lends == 0
    world.engine.submit(of("standard", "second", adapter="b", max_tokens=2))
    while not any(e.request_id == "second" for e in world.events if hasattr(e, "request_id")):
        world.step()
    seen = world.engine.stats().scheduler
    assert (seen.lends, seen.drains) == (1, 0)


def test_a_slot_is_drained_and_starts_past_the_waiting_head_are_counted() -> None:
    """Streams at their deadlines lend nothing: others of their adapter pass until patience ends."""
    world = paced(0.2, adapters=MemoryAdapters(("a", "b"), num_slots=1))
    for number in range(90):  # of different lengths: there is always one that has not ended
        world.engine.submit(of("standard", f"a{number}", adapter="a", max_tokens=4 + number % 3))
    world.step()
    world.engine.submit(of("standard", "b", adapter="b", max_tokens=4, tenant="globex"))
    world.run(max_steps=5000)
    seen = world.engine.stats().scheduler
    started = [f for f in world.events if getattr(f, "request_id", "") == "b"]
    assert started
    assert (seen.drains, seen.lends) == (1, 0)
    assert 1 <= seen.bypasses <= 90


def test_the_gap_is_that_of_waiting_tenants_over_its_bound() -> None:
    """Two streams run, a tenant each; 256 blocks of 4 tokens at the price of 2, and the window."""
    world = paced(0.02, max_num_seqs=2)
    for number in range(4):
        for tenant in ("acme", "globex"):
            sent = of("standard", f"{tenant} {number}", tenant=tenant, max_tokens=40)
            world.engine.submit(sent)
    for _ in range(10):
        world.step()
    assert isinstance(world.engine.policy, Hfs)
    acme, globex = flows(world.engine.policy)
    before = world.engine.stats().scheduler.gap_ratio
    assert before == pytest.approx(abs(acme.counter - globex.counter) / (2 * 1024 + 4096))
    globex.charge(614.4)
    assert world.engine.stats().scheduler.gap_ratio == pytest.approx(before + 0.1, abs=0.01)
    world.run()
    assert world.engine.stats().scheduler.gap_ratio == 0.0


def flows(policy: Hfs) -> list[Flow]:
    [lane] = [lane for lane in policy.live if lane.tier == "standard"]
    return list(lane.backlog)
