"""The first steps are timed, and leave nothing behind."""

from tests.engine.scripted import Scripted

from loraplex_engine.calibration import calibrate
from loraplex_engine.scheduling.hfs import Hfs
from loraplex_engine.scheduling.policy import StepPlan
from loraplex_engine.scheduling.step_model import StepLoad, StepModel


class SlowMachine:
    """Its steps take 20 ms, and 1 ms a token."""

    def __init__(self) -> None:
        self.now = 0.0
        self.plans: list[StepPlan] = []

    def clock(self) -> float:
        return self.now

    def launch(self, plan: StepPlan) -> StepPlan:
        self.plans.append(plan)
        return plan

    def collect(self, handle: StepPlan) -> list[object]:
        self.now += 0.02 + 0.001 * handle.num_tokens
        return []


def calibrated(num_blocks: int = 64) -> tuple[Scripted, SlowMachine]:
    world, machine = Scripted(policy="hfs", num_blocks=num_blocks, block_size=16), SlowMachine()
    calibrate(
        machine,  # type: ignore[arg-type]
        world.engine.policy,
        world.kv,
        max_num_seqs=16,
        max_num_batched_tokens=256,
        clock=machine.clock,
    )
    return world, machine


def test_the_step_model_knows_the_machine_before_the_first_request() -> None:
    world, _ = calibrated()
    policy = world.engine.policy
    assert isinstance(policy, Hfs)
    for num_tokens in (1, 16, 64, 256):
        load = StepLoad()
        load.add(0, num_tokens)
        truth_s = 0.02 + 0.001 * num_tokens
        assert 0.6 * truth_s < policy.model.predict(load) < 1.6 * truth_s
        assert not 0.6 * truth_s < StepModel().predict(load) < 1.6 * truth_s


def test_calibration_gives_back_every_block_and_caches_nothing() -> None:
    world, machine = calibrated()
    assert len(machine.plans) == 6
    assert world.kv.num_free == world.kv.num_blocks
    assert world.kv.num_cached == 0
    world.kv.check_integrity([])


def test_a_cache_too_small_for_it_is_left_alone() -> None:
    _, machine = calibrated(num_blocks=16)
    assert machine.plans == []
