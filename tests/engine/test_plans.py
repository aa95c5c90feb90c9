"""Recorded plans of the real loop: live work is planned as if there were no batch work."""

from dataclasses import replace

import pytest
from tests.engine.scripted import Scripted, request

from loraplex_engine.messages import Finished, Generate
from loraplex_engine.scheduling.policy import StepPlan

STEP_S = 0.02


def live(number: int) -> Generate:
    prompt = chr(65 + number) * (40 + 30 * number)
    return replace(request(f"live {number}", prompt, max_tokens=12), tier="interactive")


def batch(number: int, **sampling: int) -> Generate:
    sent = request(f"batch {number}", chr(97 + number % 20) * 200, **{"max_tokens": 60} | sampling)
    return replace(sent, tenant="batch tenant", tier="batch")


def world(num_blocks: int = 256) -> Scripted:
    made = Scripted(
        policy="hfs",
        num_blocks=num_blocks,
        block_size=16,
        max_num_seqs=8,
        max_num_batched_tokens=128,
    )
    launch = made.runner.launch

    def launch_and_wait(plan: StepPlan) -> StepPlan:
        made.clock.now += STEP_S
        return launch(plan)

    made.runner.launch = launch_and_wait  # type: ignore[method-assign]
    return made


def online_part(plan: StepPlan) -> list[tuple[str, int, int]]:
    items = [item for item in plan.items if item.seq.tier != "batch"]
    return [(item.seq.request_id, item.start, item.num_tokens) for item in items]


def run(made: Scripted, with_batch: bool) -> list[StepPlan]:
    """Live requests come in two bursts; batch work is endless. Plans from the first arrival on."""
    for number in range(8 if with_batch else 0):
        made.engine.submit(batch(number))
    for _ in range(6 if with_batch else 0):
        made.step()
    first = len(made.runner.plans)
    for number in (0, 1, 2):
        made.engine.submit(live(number))
    for step in range(60):
        if step == 10:
            for number in (3, 4):
                made.engine.submit(live(number))
        made.step()
        if not any(s.tier != "batch" for s in made.engine.stats().sequences) and step > 10:
            break
    return made.runner.plans[first:]


@pytest.mark.parametrize("num_blocks", [256, 120], ids=["ample", "tight"])
def test_the_live_part_of_every_plan_is_that_without_batch_work(num_blocks: int) -> None:
    alone = [online_part(plan) for plan in run(world(num_blocks), with_batch=False)]
    beside = [online_part(plan) for plan in run(world(num_blocks), with_batch=True)]
    assert [part for part in beside if part] == [part for part in alone if part]


def test_batch_work_fills_what_is_left_and_loses_no_token() -> None:
    """The cache is too small for all: batch work makes way first, and comes back."""
    made = world(num_blocks=40)
    for number in range(6):
        made.engine.submit(batch(number))
    for _ in range(8):
        made.step()
    for number in (1, 2, 3, 4):
        made.engine.submit(live(number))
    made.run(max_steps=3000)
    preempted = [p.seq for plan in made.runner.plans for p in plan.preemptions]
    assert preempted
    assert all(seq.tier == "batch" for seq in preempted)
    ends = {e.request_id: e for e in made.events if isinstance(e, Finished)}
    for number in range(6):
        assert ends[f"batch {number}"].completion_tokens == 60
        assert len(made.text(f"batch {number}")) == 60
    mixed = [plan for plan in made.runner.plans if online_part(plan)]
    assert any(len(online_part(plan)) < len(plan.items) for plan in mixed)
