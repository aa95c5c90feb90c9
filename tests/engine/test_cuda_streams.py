"""What waits for what on a GPU: copies of blocks, loads of adapters and captures beside the steps."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from tests.engine.fake_cuda import FakeCuda, SpiedBlocks

from loraplex_adapters.extras import LoraFactors
from loraplex_adapters.layout import ProjectionSpec, SliceSpec
from loraplex_adapters.loader import AdapterWeights
from loraplex_adapters.slabs import DeviceSlabs
from loraplex_engine.device import Device, KvShape, LayerKv
from loraplex_kernels.lora import LoraSlab


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


def spied_blocks(name: str, cuda: FakeCuda) -> torch.Tensor:
    """All that is asked of them is to be copied."""
    return cast(torch.Tensor, SpiedBlocks(name, cuda.note))


def test_blocks_move_behind_the_steps_launched_and_beside_those_to_come(cuda: FakeCuda) -> None:
    device, log = Device("cuda"), cuda.log
    here, there = (
        [LayerKv(*(spied_blocks(f"{arena}{kind}", cuda) for kind in "kv"))] for arena in "gh"
    )
    mark = device.copy_blocks(here, there, [(5, 0), (3, 1)])
    copies = ["gk5 to hk0", "gk3 to hk1", "gv5 to hv0", "gv3 to hv1"]
    assert log == [
        "stream 1 waits for steps",
        *(f"stream 1: {copy}" for copy in copies),
        "stream 1 is marked",
    ]
    assert cuda.current is cuda.steps
    assert mark is not None
    device.copy_blocks(there, here, [(1, 7)])
    assert log[-2:] == ["stream 1: hv1 to gv7", "stream 1 is marked"], "one after the other"
    device.wait_for(mark)
    assert log[-1] == "steps waits for mark in stream 1"


def test_an_adapter_is_written_behind_the_steps_that_may_still_read_its_rows(
    cuda: FakeCuda,
) -> None:
    spec = ProjectionSpec("layers.0.o", 4, (SliceSpec("o_proj", 6),))
    slabs = DeviceSlabs(
        (spec,), num_slots=1, num_rows=3, dtype=torch.float32, device=torch.device("cpu")
    )
    slabs.device = torch.device("cuda")  # what lies on the CPU is written as what does not
    fence = slabs.fence()
    assert cuda.log == ["steps is marked"]
    factors = LoraFactors(torch.randn(2, 4), torch.randn(2, 6), 1.0)
    slabs.write(AdapterWeights(Noted(cuda.note, o_proj=factors)), 1, fence)
    assert cuda.log[1:] == [
        "stream 1 waits for mark in steps",
        "stream 1: o_proj is copied",
        "the caller waits for stream 1",
    ]
    slab = slabs.slabs["layers.0.o"]
    assert isinstance(slab, LoraSlab)
    assert torch.equal(slab.a[0, 1:], factors.a)


class Noted(dict[str, LoraFactors]):
    """Factors, of which it is noted when they are asked for."""

    def __init__(self, note: Callable[[str], None], **factors: LoraFactors) -> None:
        super().__init__(factors)
        self._note = note

    def get(self, module: str, default: Any = None) -> Any:
        self._note(f"{module} is copied")
        return super().get(module)


def test_a_graph_is_captured_after_its_kernels_have_run_once(cuda: FakeCuda) -> None:
    device, output = Device("cuda"), torch.ones(2)

    def compute() -> torch.Tensor:
        cuda.note("kernels")
        return output

    graph = device.capture(compute)
    assert graph.output is output
    assert cuda.log == [
        "stream 2 waits for steps",
        "stream 2: kernels",
        "steps waits for stream 2",
        "capture begins, pool, thread_local",
        "steps: kernels",
        "capture ends",
    ]
    graph.replay()
    assert cuda.log[-1] == "steps: replay"


def test_host_memory_that_copies_start_from_is_pinned(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, empty, pinned = Device("cuda"), torch.empty, []

    def noting(*shape: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        pinned.append(pin_memory)
        return empty(*shape, **options)

    monkeypatch.setattr(torch, "empty", noting)
    device.staging(64)
    device.allocate_host_kv(KvShape(1, 1, 16, 8, torch.bfloat16), 2)
    assert pinned == [True] * 3, "a step's tables, keys, values"
    Device("cpu").staging(64)
    assert not pinned[-1]
