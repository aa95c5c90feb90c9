"""Nobody waits for ever: wide adapters, and prompts where steps are tiny."""

from dataclasses import replace

from tests.engine.memory_adapters import MemoryAdapters
from tests.engine.scripted import Scripted, request

from loraplex_adapters.residents import Need
from loraplex_adapters.slots import SlotTable
from loraplex_engine.messages import Finished
from loraplex_engine.scheduling.hfs import Hfs
from loraplex_engine.scheduling.step_model import StepLoad, StepModel


class RowAdapters(MemoryAdapters):
    """Slots with rows: an adapter's rank is its name's number, and a wide one needs neighbours gone."""

    def __init__(self, versions: tuple[str, ...], *, num_slots: int, num_rows: int) -> None:
        super().__init__(versions, num_slots=num_slots)
        self.table = SlotTable(num_slots, num_rows, num_rows)

    def can_load(self, adapter: str) -> bool:
        return adapter not in self.table.residents and self.table.fits(need_of(adapter))

    def blockers(self, adapter: str, remaining: object) -> tuple[str, ...] | None:
        return self.table.blockers(need_of(adapter), remaining)  # type: ignore[arg-type]

    def start_load(self, version: str) -> None:
        if version not in self.table.residents and self.can_load(version):
            slot = self.table.promise()
            assert slot is not None
            row = self.table.take(slot, need_of(version))
            if row is not None:
                self.table.settle(version, slot, row)

    def state(self, adapter: str):  # type: ignore[no-untyped-def]
        return "resident" if self.table.is_usable(adapter) else "absent"

    def acquire(self, adapter: str) -> None:
        self.table.acquire(adapter)

    def release(self, adapter: str) -> None:
        self.table.release(adapter)

    def slot_of(self, version: str) -> int:
        return self.table.residents[version].slot


def need_of(adapter: str) -> Need:
    return Need(int(adapter.split("-")[1]))


def test_a_wide_adapter_gets_the_room_of_several_narrow_ones_that_never_rest() -> None:
    """Four narrow adapters are asked for without end; the wide one needs the rows of all four."""
    narrow = tuple(f"n{i}-8" for i in range(4))
    adapters = RowAdapters((*narrow, "wide-32"), num_slots=4, num_rows=32)
    world = Scripted(
        adapters=adapters, policy="hfs", num_blocks=256, max_num_seqs=16, max_num_batched_tokens=64
    )
    number = 0
    for step in range(4000):
        while sum(r.adapter != "wide-32" for r in world.engine.stats().sequences) < 12:
            number += 1
            world.engine.submit(request(f"n{number}", adapter=narrow[number % 4], max_tokens=20))
        if step == 20:
            world.engine.submit(request("wide", adapter="wide-32", max_tokens=2))
        world.clock.now += 0.05
        if any(isinstance(e, Finished) and e.request_id == "wide" for e in world.step()):
            break
    assert world.finished("wide").finish_reason == "length"
    # The patience of its tier, and the longest of the twenty-token streams in its way.
    assert world.finished("wide").queue_s < 5.0 + 2 * 20 * 0.06


def test_a_machine_that_stalled_goes_on_with_what_waits() -> None:
    """One step took a thousand times as long as forecast; another kind of machine costs per sequence."""
    model = StepModel()
    load = StepLoad()
    load.add(0, 64)
    for i in range(640):
        model.observe(load, 5.0 if i % 64 == 0 else 0.005)
    world = Scripted(policy="hfs")
    policy = world.engine.policy
    assert isinstance(policy, Hfs)
    policy.model.margin = model.margin
    policy.model.per_seq_s = 0.1
    world.run(replace(request(), tier="batch"))
    assert world.finished().finish_reason == "length"
    assert model.margin <= 1.0


def test_a_prompt_is_served_where_a_step_has_room_for_few_tokens() -> None:
    world = Scripted(policy="hfs", max_num_batched_tokens=3)
    world.run(request("long", "abcdefghijklmnop"), request("other", "xyz"))
    assert world.text("long") == world.text("other") == "abcde"
    assert max(plan.num_tokens for plan in world.runner.plans) <= 3
