"""An adapter lies in its rows of the packed memory in one piece, in the order in which a step reads it."""

import psutil
import torch
from hypothesis import given
from hypothesis import strategies as st

from loraplex_adapters.extras import LoraFactors
from loraplex_adapters.layout import ProjectionSpec, SliceSpec
from loraplex_adapters.loader import AdapterWeights
from loraplex_adapters.packed_memory import PackedMemory
from loraplex_adapters.slabs import DeviceSlabs
from loraplex_kernels.device import has_amx
from loraplex_kernels.lora import LoraSlab, PackedSlab, pack

CPU = torch.device("cpu")
PROJECTIONS = (
    ProjectionSpec("0.qkv", 64, (SliceSpec("q", 64), SliceSpec("k", 16), SliceSpec("v", 16))),
    ProjectionSpec("0.o", 64, (SliceSpec("o", 64),)),
)


def weights(**ranks: int) -> AdapterWeights:
    width = {"q": 64, "k": 16, "v": 16, "o": 64, "lm_head": 49}
    return AdapterWeights(
        {
            name: LoraFactors(
                torch.randn(r, 64).bfloat16(), torch.randn(r, width[name]).bfloat16(), r
            )
            for name, r in ranks.items()
        }
    )


def check(
    slabs: DeviceSlabs, layout: tuple[ProjectionSpec, ...], slot: int, adapter: AdapterWeights
) -> None:
    """The slot has this adapter's factors, and none where it has none."""
    for projection in layout:
        slab = slabs.slabs[projection.name]
        for s, piece in enumerate(projection.slices):
            factors = adapter.modules.get(piece.module)
            a, b = slab.factors(s, slot)
            assert len(a) == len(b) == (factors.rank if factors else 0)
            if factors:
                assert torch.equal(a, factors.a)
                assert torch.equal(b, factors.b)


def test_slices_follow_each_other_and_those_left_alone_take_nothing() -> None:
    memory, adapter = PackedMemory(PROJECTIONS, 20), weights(q=3, v=8, o=5)
    before = memory.elements.clone()
    starts = memory.put(adapter, 11)
    row = 4 * 64 + 64 + 16 + 16 + 64
    assert starts == {"q": 11 * row, "v": 11 * row + 3 * 128, "o": 11 * row + 3 * 128 + 8 * 80}
    parts = [pack(f.a, f.b) for f in adapter.modules.values()]
    taken = memory.elements[11 * row :][: sum(map(len, parts))]
    assert torch.equal(taken, torch.cat(parts))
    taken.zero_()
    assert torch.equal(memory.elements, before), "nothing outside its rows"


@given(st.integers(1, 70), st.integers(1, 70), st.booleans())
def test_an_adapter_is_packed_like_its_factors_one_by_one(q: int, o: int, is_saved: bool) -> None:
    memory, adapter = PackedMemory(PROJECTIONS, 70), weights(q=q, o=o)
    if is_saved:  # as it lies in a file: B [width, rank]
        turned = {n: f._replace(b=f.b.T.contiguous().T) for n, f in adapter.modules.items()}
        adapter = AdapterWeights(turned)
    starts = memory.put(adapter, 0)
    for name, factors in adapter.modules.items():
        packed = pack(factors.a, factors.b)
        assert torch.equal(memory.elements[starts[name] :][: len(packed)], packed)


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
        check(slabs, PROJECTIONS, slot, adapter)


def test_only_bfloat16_in_steps_of_a_tile_is_packed() -> None:
    qkv, odd = PROJECTIONS[0], ProjectionSpec("0.o", 64, (SliceSpec("o", 40),))
    assert PackedMemory.serves(qkv, torch.bfloat16, CPU) == has_amx()
    assert not PackedMemory.serves(qkv, torch.float32, CPU)
    assert not PackedMemory.serves(qkv, torch.bfloat16, torch.device("cuda"))
    assert not PackedMemory.serves(odd, torch.bfloat16, CPU)


def test_a_projection_that_no_tile_serves_lies_beside_the_others() -> None:
    odd = ProjectionSpec("head", 64, (SliceSpec("lm_head", 49),))
    layout = (PROJECTIONS[0], odd)
    slabs = DeviceSlabs(layout, num_slots=2, num_rows=12, dtype=torch.bfloat16, device=CPU)
    adapter = weights(q=4, v=8, lm_head=3)
    slabs.publish(1, 4, slabs.write(adapter, 4, None))
    assert isinstance(slabs.slabs["head"], LoraSlab)
    assert isinstance(slabs.slabs["0.qkv"], PackedSlab) == has_amx()
    check(slabs, layout, 1, adapter)


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
