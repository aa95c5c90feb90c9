"""An adapter lies in its rows of the packed memory in one piece, in the order in which a step reads it."""

import psutil
import torch

from loraplex_adapters.extras import LoraFactors
from loraplex_adapters.layout import ProjectionSpec, SliceSpec
from loraplex_adapters.loader import AdapterWeights
from loraplex_adapters.packed_memory import PackedMemory
from loraplex_adapters.slabs import DeviceSlabs
from loraplex_kernels.lora import PackedSlab, pack

CPU = torch.device("cpu")
PROJECTIONS = (
    ProjectionSpec("0.qkv", 64, (SliceSpec("q", 64), SliceSpec("k", 16), SliceSpec("v", 16))),
    ProjectionSpec("0.o", 64, (SliceSpec("o", 64),)),
)


def weights(**ranks: int) -> AdapterWeights:
    width = {piece.module: piece.out_features for p in PROJECTIONS for piece in p.slices}
    return AdapterWeights(
        {
            name: LoraFactors(
                torch.randn(r, 64).bfloat16(), torch.randn(r, width[name]).bfloat16(), r
            )
            for name, r in ranks.items()
        }
    )


def test_slices_follow_each_other_and_those_left_alone_take_nothing() -> None:
    memory, adapter = PackedMemory(PROJECTIONS, 20), weights(q=3, v=8, o=5)
    before = memory.elements.clone()
    starts = memory.put(adapter, 11)
    row = 4 * 64 + 64 + 16 + 16 + 64
    assert starts == [at + 11 * row for at in (0, 3 * 128, 3 * 128, 3 * 128 + 8 * 80)]
    parts = [pack(f.a, f.b) for f in adapter.modules.values()]
    taken = memory.elements[11 * row :][: sum(map(len, parts))]
    assert torch.equal(taken, torch.cat(parts))
    taken.zero_()
    assert torch.equal(memory.elements, before), "nothing outside its rows"


def test_slots_have_what_was_published_last() -> None:
    slabs = DeviceSlabs(PROJECTIONS, num_slots=3, num_rows=40, dtype=torch.bfloat16, device=CPU)
    published = {
        2: (0, weights(q=8, k=8, v=8, o=8)),
        0: (30, weights(k=2, o=7)),
        1: (9, weights(q=16)),
    }
    for slot, (row, adapter) in published.items():
        slabs.publish(slot, row, slabs.write(adapter, row, None))
    moved = weights(v=1, o=4)
    slabs.publish(0, 25, slabs.write(moved, 25, None))
    for slot, adapter in {2: published[2][1], 0: moved, 1: published[1][1]}.items():
        for projection in PROJECTIONS:
            slab = slabs.slabs[projection.name]
            for s, piece in enumerate(projection.slices):
                factors = adapter.modules.get(piece.module)
                assert int(slab.rank[slot, s]) == (factors.rank if factors else 0)
                if factors:
                    a, b = slab.factors(s, slot)
                    assert torch.equal(a, factors.a)
                    assert torch.equal(b, factors.b)


def test_only_bfloat16_in_steps_of_a_tile_is_packed() -> None:
    odd = (ProjectionSpec("0.o", 64, (SliceSpec("o", 40),)),)
    assert not PackedMemory.serves(PROJECTIONS, torch.float32, CPU)
    assert not PackedMemory.serves(odd, torch.bfloat16, CPU)
    assert not PackedMemory.serves(PROJECTIONS, torch.bfloat16, torch.device("cuda"))
    assert PackedSlab.serves(64, (64, 16, 16))


def test_rows_without_an_adapter_take_no_memory() -> None:
    large = (ProjectionSpec("0.o", 4096, (SliceSpec("o", 4096),)),)
    process = psutil.Process()
    before = process.memory_info().rss
    memory = PackedMemory(large, 2**14)
    held = memory.elements.nbytes
    factors = LoraFactors(torch.ones(64, 4096).bfloat16(), torch.ones(64, 4096).bfloat16(), 1.0)
    memory.put(AdapterWeights({"o": factors}), 2**13)
    assert process.memory_info().rss - before < held / 8
    assert memory.elements[2**13 * 8192 :][: 64 * 8192].all()
