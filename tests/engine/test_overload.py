"""What cannot be served in time is refused at once, and what has had its time ends."""

import math
from dataclasses import replace
from typing import Any

import pytest
from tests.engine.scripted import Scripted, request

from loraplex_engine.messages import (
    Explain,
    Explanation,
    Finished,
    Generate,
    SetTenant,
    TenantShare,
    Tier,
)
from loraplex_engine.runner import SampledTokens
from loraplex_engine.scheduling.policy import StepPlan


def slow(max_queue_s: float = math.inf, seats: int = 1) -> Scripted:
    """So many sequences at a time, ten tokens each, a second a step; the policy has learnt that."""
    world = Scripted(policy="hfs", max_num_seqs=seats, num_blocks=256, max_num_batched_tokens=64)
    world.engine.served = replace(world.engine.served, max_queue_s=max_queue_s)
    collect = world.runner.collect

    def collect_after_a_second(handle: StepPlan) -> list[SampledTokens]:
        world.clock.now += 1.0
        return collect(handle)

    world.runner.collect = collect_after_a_second  # type: ignore[method-assign]
    for i in range(30):
        world.run(asking(f"before {i}"))
    return world


def asking(request_id: str, **change: Any) -> Generate:
    return replace(request(request_id, max_tokens=10), **change)


def refusals(world: Scripted) -> list[Finished]:
    ends = [event for event in world.step() if isinstance(event, Finished)]
    return [end for end in ends if end.error == "overloaded"]


def test_the_first_too_many_is_refused_and_told_when_to_come_back() -> None:
    """Each takes about ten seconds, a hundred may be waited: the eleventh or so is too many."""
    world = slow(max_queue_s=100.0)
    for i in range(20):
        world.engine.submit(asking(str(i)))
    refused = refusals(world)
    assert 6 <= len(refused) <= 11
    assert all(end.completion_tokens == 0 for end in refused)
    assert all(1.0 <= (end.retry_after_s or 0) <= 60.0 for end in refused)
    started = world.clock.now
    world.run()
    assert world.clock.now - started <= 1.4 * 100 + 10


def test_the_promise_of_retry_after_is_kept() -> None:
    world = slow(max_queue_s=50.0)
    for i in range(12):
        world.engine.submit(asking(str(i)))
    until = world.clock.now + (refusals(world)[-1].retry_after_s or 0)
    while world.clock.now < until:
        world.step()
    world.engine.submit(asking("retry"))
    assert refusals(world) == []


def test_batch_work_may_wait_as_long_as_it_takes() -> None:
    world = slow(max_queue_s=20.0)
    for i in range(20):
        world.engine.submit(asking(str(i), tier="batch"))
    assert refusals(world) == []


def test_a_request_with_less_time_than_the_queue_needs_is_refused() -> None:
    world = slow()
    for i in range(10):
        world.engine.submit(asking(str(i)))
    world.engine.submit(asking("hurried", remaining_s=20.0))
    world.step()
    assert world.finished("hurried").error == "overloaded"


def test_the_victim_of_a_flood_is_not_refused_for_it() -> None:
    """Fair order lets the other tenant through: its wait is short whatever the flood."""
    world = slow()
    for i in range(30):
        world.engine.submit(asking(f"flood {i}"))
    world.engine.submit(asking("victim", tenant="globex", remaining_s=60.0))
    world.step()
    world.run()
    assert world.finished("victim").finish_reason == "length"


def test_what_has_had_its_time_ends_wherever_it_is() -> None:
    world = Scripted(max_num_seqs=1, num_blocks=64)
    world.engine.submit(replace(request("running", max_tokens=100), remaining_s=5.0))
    world.engine.submit(asking("waiting", remaining_s=5.0))
    world.engine.submit(asking("patient"))
    world.step()
    world.clock.now += 6.0
    world.run()
    assert [world.finished(r).error for r in ("running", "waiting")] == ["timeout"] * 2
    assert world.finished("running").completion_tokens == 1
    assert world.finished("patient").finish_reason == "length"
    world.check_books()
    assert world.kv.num_free == 64


def explained(world: Scripted, request_id: str) -> Explanation:
    world.engine.submit(Explain(request_id))
    return next(e for e in world.step() if isinstance(e, Explanation))


def test_a_waiting_request_is_explained_to_its_tenant() -> None:
    world = slow()
    for i in range(4):
        world.engine.submit(asking(str(i)))
    world.step()
    why = explained(world, "3")
    assert (why.tenant, why.phase, why.reason, why.ahead) == ("acme", "waiting", "priority", 2)
    assert why.expected_s == pytest.approx(30, rel=0.4)
    assert explained(world, "0").reason is None


@pytest.mark.parametrize("count", [4, 6, 11])
@pytest.mark.parametrize("tier", ["standard", "batch"])
def test_who_waits_behind_a_burst_is_told_when_it_will_end(tier: Tier, count: int) -> None:
    """All seats are taken at once, and so are left at once."""
    world = slow(seats=4)
    for i in range(count):
        world.engine.submit(asking(str(i)))
    world.engine.submit(asking("late", tier=tier))
    for _ in range(3):
        world.step()
    why, asked_s = explained(world, "late"), world.clock.now
    assert why.ahead == count - 4
    while not world.text("late"):
        world.step()
    assert why.expected_s == pytest.approx(world.clock.now - asked_s, rel=0.35)


def test_a_share_changed_live_changes_who_comes_next() -> None:
    """Two tenants wait; the one whose weight is raised gets most of the next services."""
    world = Scripted(policy="hfs", max_num_seqs=1, num_blocks=256, max_num_batched_tokens=64)
    for i in range(400):
        for tenant in ("acme", "globex"):
            world.engine.submit(replace(asking(f"{tenant} {i}"), tenant=tenant))
    world.engine.submit(SetTenant(TenantShare("globex", weight=4.0)))
    order: list[str] = []
    while len(order) < 400:
        order += [e.request_id for e in world.step() if isinstance(e, Finished)]
    share = sum(name.startswith("globex") for name in order) / len(order)
    assert 0.6 < share < 0.9


def test_a_step_far_beyond_its_forecast_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    world = slow()
    assert world.engine.stats().scheduler.forecast_error < 1.0
    before = world.engine.stats().scheduler.slow_steps
    world.engine.submit(asking("r"))
    world.step()
    world.clock.now += 30.0  # the next step hangs
    launch = world.runner.launch

    def hang(plan: StepPlan) -> StepPlan:
        world.clock.now += 30.0
        return launch(plan)

    world.runner.launch = hang  # type: ignore[method-assign]
    world.step()
    assert world.engine.stats().scheduler.slow_steps == before + 1
    assert "a step took 31.0" in caplog.text


def test_jain_tells_one_from_the_other() -> None:
    """First come, first served lets a flood starve the other tenant; fair order does not."""
    found = {}
    for policy in ("fcfs", "hfs"):
        world = Scripted(
            policy=policy,  # type: ignore[arg-type]
            max_num_seqs=1,
            num_blocks=256,
            max_num_batched_tokens=64,
        )
        world.engine.stats()
        for i in range(300):
            world.engine.submit(asking(f"flood {i}"))
        for i in range(300):
            world.engine.submit(asking(f"other {i}", tenant="globex"))
        world.clock.now += 61.0
        world.engine.stats()  # a window begins
        for _ in range(2500):
            world.step()
        world.clock.now += 61.0
        found[policy] = world.engine.stats().scheduler.jain
    assert found["fcfs"] == pytest.approx(0.5, abs=0.05)
    assert found["hfs"] > 0.9
