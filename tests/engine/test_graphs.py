"""What the runner does on a GPU, on a device that pretends: graphs, packed tables, copies beside steps."""

from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from tests.engine.fake_gpu import FakeGpu
from tests.engine.memory_adapters import MemoryAdapters
from tests.engine.tiny import ALL_MODULES, make_adapter, make_model

from loraplex_adapters.extras import LoraFactors
from loraplex_adapters.layout import BaseModel, ProjectionSpec
from loraplex_adapters.loader import AdapterWeights
from loraplex_adapters.manifest import Limits
from loraplex_adapters.slabs import DeviceSlabs
from loraplex_adapters.slot_extras import SlotExtras
from loraplex_adapters.store import AdapterStore
from loraplex_engine.batch import Batch, StepTables, arrays_of, move
from loraplex_engine.build import LoadedModel, adapter_cache, load_model
from loraplex_engine.config import EngineConfig
from loraplex_engine.device import Device, KvShape, LayerKv
from loraplex_engine.graphs import DecodeGraphs, GraphLimits
from loraplex_engine.messages import SamplingParams
from loraplex_engine.model.decoder import projection_layout
from loraplex_engine.offline import Completion, Offline, Prompt
from loraplex_engine.packing import ALIGNMENT
from loraplex_engine.runner import ModelRunner
from loraplex_engine.sampler import Sampler
from loraplex_engine.scheduling.policy import BlockCopy, ScheduledTokens, StepPlan
from loraplex_engine.sequence import Sequence
from loraplex_kernels.lora import build_segments

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

BLOCK = 16
WIDTH = 3  # blocks of a sequence
LIMITS = GraphLimits(max_num_seqs=20, max_blocks=WIDTH + 1, max_loras=3)
RANKS = (4, 16, 1)
BORDERS = (1, 2, 3, 4, 5, 8, 9, 16, 17, 20)


class Graphed(NamedTuple):
    model: LoadedModel
    device: FakeGpu
    slabs: DeviceSlabs
    kv: list[LayerKv]
    graphs: DecodeGraphs

    def eager(self, tables: StepTables) -> tuple[torch.Tensor, list[LayerKv]]:
        """Logits of a step without a graph, and the cache that it would leave."""
        kv = [LayerKv(layer.k.clone(), layer.v.clone()) for layer in self.kv]
        batch = move(tables, Device("cpu"))
        logits = self.model.decoder.forward(batch, kv, self.slabs.slabs, {})
        assert logits is not None
        return logits.known, kv

    def replayed(self, tables: StepTables) -> torch.Tensor:
        loaded = self.graphs.load(tables, {})
        assert loaded is not None
        return loaded.replay().clone()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graphs")
    model = make_model(folder / "model")
    for i, rank in enumerate(RANKS):
        make_adapter(
            model, folder / f"a{i}", rank=rank, alpha=2.0 * rank, modules=ALL_MODULES, seed=i
        )
    return folder


@pytest.fixture(scope="module")
def config(folder: Path) -> EngineConfig:
    return EngineConfig(
        model=folder / "model",
        dtype="bfloat16",  # whose products on a CPU do not depend on the other rows
        max_loras=2,
        max_num_seqs=6,
        max_num_batched_tokens=32,
        cpu_kv_cache_bytes=2**20,
        threads=1,
    )


@pytest.fixture(scope="module")
def model(config: EngineConfig) -> LoadedModel:
    return load_model(config)


def random_weights(projections: Iterable[ProjectionSpec], rank: int) -> AdapterWeights:
    def factor(width: int) -> torch.Tensor:
        return torch.randn(rank, width, dtype=torch.bfloat16).mul_(0.1)

    return AdapterWeights(
        {
            piece.module: LoraFactors(
                factor(projection.in_features), factor(piece.out_features), 0.5
            )
            for projection in projections
            for piece in projection.slices
        }
    )


@pytest.fixture(scope="module")
def graphed(model: LoadedModel) -> Graphed:
    torch.manual_seed(1)
    device, shape = FakeGpu(), model.config
    slabs = DeviceSlabs(
        projection_layout(shape),
        num_slots=len(RANKS),
        num_rows=sum(RANKS),
        dtype=torch.bfloat16,
        device=device.torch_device,
    )
    for slot, rank in enumerate(RANKS):
        weights = random_weights(projection_layout(shape), rank)
        slabs.publish(slot, sum(RANKS[:slot]), slabs.write(weights, sum(RANKS[:slot]), None))
    kv_shape = KvShape(shape.num_layers, shape.num_kv_heads, BLOCK, shape.head_dim, torch.bfloat16)
    kv = device.allocate_kv(kv_shape, 20 * WIDTH + 1)
    for layer in kv:
        layer.k.normal_()
        layer.v.normal_()
    graphs = DecodeGraphs(model.decoder, kv, slabs.slabs, device, LIMITS)
    graphs.capture()
    return Graphed(model, device, slabs, kv, graphs)


def decodes(num_rows: int, slots: list[int], seed: int = 0) -> StepTables:
    """A decode of each of so many streams, each with blocks of its own."""
    random = np.random.default_rng(seed)
    blocks = random.permutation(20 * WIDTH)[: num_rows * WIDTH].astype(np.int32)
    tables = blocks.reshape(num_rows, WIDTH)
    positions = random.integers(0, BLOCK * WIDTH, num_rows)
    segments = build_segments(np.array(slots, np.int32))
    return StepTables(
        token_ids=random.integers(0, 199, num_rows),
        positions=positions,
        slot_mapping=tables[np.arange(num_rows), positions // BLOCK] * np.int64(BLOCK)
        + positions % BLOCK,
        block_tables=tables,
        query_start=np.arange(num_rows + 1, dtype=np.int32),
        context_lengths=(positions + 1).astype(np.int32),
        sample_rows=np.arange(num_rows),
        lora=segments,
        sample_lora=segments,
    )


def tables_of(batch: Batch) -> list[torch.Tensor]:
    """All but those of LoRA."""
    tables = (getattr(batch, field.name) for field in fields(batch))
    return [table for table in tables if isinstance(table, torch.Tensor)]


def slots_of(mix: str, num_rows: int) -> list[int]:
    return {
        "base": [-1] * num_rows,
        "one": [1] * num_rows,
        "mixed": [(i % 4) - 1 for i in range(1, num_rows + 1)],
    }[mix]


@pytest.mark.parametrize("mix", ["base", "one", "mixed"])
def test_a_replayed_step_is_the_step(graphed: Graphed, mix: str) -> None:
    """At every border of a bucket, the same logits and the same cache, but for the block of nobody."""
    for num_rows in BORDERS:
        tables = decodes(num_rows, slots_of(mix, num_rows), seed=num_rows)
        expected, cache = graphed.eager(tables)
        assert torch.equal(graphed.replayed(tables), expected), num_rows
        for mine, theirs in zip(graphed.kv, cache, strict=True):
            assert torch.equal(mine.k[:-1], theirs.k[:-1])
            assert torch.equal(mine.v[:-1], theirs.v[:-1])


def test_a_smaller_step_sees_nothing_of_a_larger_one_before(graphed: Graphed) -> None:
    graphed.replayed(decodes(8, slots_of("mixed", 8)))
    tables = decodes(5, [-1, -1, 2, -1, -1], seed=3)
    loaded = graphed.graphs.load(tables, {})
    assert loaded is not None
    batch, lora = loaded.batch, loaded.batch.lora
    assert lora is not None
    assert lora.on_device is not None
    _, _, _, lengths = lora.on_device
    assert lengths.tolist() == [1] + [0] * (len(lengths) - 1)
    nowhere = len(graphed.kv[0].k) - 1
    assert batch.block_tables[5:, 0].tolist() == [nowhere] * 3
    assert (batch.slot_mapping[5:] // BLOCK).tolist() == [nowhere] * 3
    assert torch.equal(loaded.replay(), graphed.eager(tables)[0])


def test_a_graph_keeps_its_addresses_and_gets_its_tables_in_one_copy(graphed: Graphed) -> None:
    seen = set()
    for num_rows in (5, 8, 6):
        copies = graphed.device.num_copies
        loaded = graphed.graphs.load(decodes(num_rows, [0] * num_rows), {})
        assert graphed.device.num_copies == copies + 1
        assert loaded is not None
        assert loaded.batch.lora is not None
        lora = loaded.batch.lora
        tensors = [*tables_of(loaded.batch), *(lora.on_device or ())]
        seen.add((*(tensor.data_ptr() for tensor in tensors), *lora.addresses))
    assert len(seen) == 1


def test_more_adapters_than_chunks_could_hold_do_not_exist(graphed: Graphed) -> None:
    """Every adapter has a chunk that is not full, and one has full ones too."""
    for slots in ([0] * 17 + [1, 2, -1], [0] * 9 + [1] * 10 + [2], [0] * 20):
        tables = decodes(20, slots, seed=9)
        assert torch.equal(graphed.replayed(tables), graphed.eager(tables)[0])


def test_what_no_graph_can_compute_is_left_to_the_decoder(graphed: Graphed) -> None:
    graphs, step = graphed.graphs, decodes(4, [0, 1, -1, 0])
    assert graphs.load(step, {2: SlotExtras({}, {}, None)}) is not None
    assert graphs.load(step, {1: SlotExtras({}, {}, None)}) is None
    assert graphs.load(replace(step, sample_rows=np.arange(3)), {}) is None
    prompt = replace(step, token_ids=np.zeros(9, np.int64))
    assert graphs.load(prompt, {}) is None
    assert graphs.load(replace(step, block_tables=np.zeros((4, WIDTH + 2), np.int32)), {}) is None
    many = replace(decodes(20, [-1] * 20), block_tables=np.zeros((21, WIDTH), np.int32))
    many = replace(many, token_ids=np.zeros(21, np.int64), sample_rows=np.arange(21))
    assert graphs.load(many, {}) is None


def test_packed_tables_are_the_tables() -> None:
    tables, device = decodes(7, slots_of("mixed", 7)), FakeGpu()
    packed, plain = move(tables, device), move(tables, Device("cpu"))
    assert device.num_copies == 1
    for mine, theirs in zip(tables_of(packed), tables_of(plain), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.data_ptr() % ALIGNMENT == 0
    for lora, kept in ((packed.lora, tables.lora), (packed.sample_lora, tables.sample_lora)):
        assert lora is not None
        assert kept is not None
        arrays = (kept.permutation, kept.chunk_slot, kept.chunk_start, kept.chunk_length)
        for tensor, array in zip(lora.on_device or (), arrays, strict=True):
            assert tensor.tolist() == array.tolist()
    assert len(arrays_of(tables)) == 15


@pytest.fixture
def prompts() -> list[Prompt]:
    """Streams that come and go, with prompts of one to three chunks; three adapters in two slots."""
    return [
        Prompt(
            [(31 * i + 7 * j) % 199 for j in range(5 + 9 * (i % 8))],
            (None, "a0", "a1", "a2")[i % 4],
            SamplingParams(max_tokens=5 + i, temperature=0.0, ignore_eos=True),
            arrives=2 * i,
        )
        for i in range(12)
    ]


def said(
    config: EngineConfig, model: LoadedModel, folder: Path, prompts: list[Prompt]
) -> list[Completion]:
    store = AdapterStore(folder / "store")
    base = BaseModel.from_checkpoint(None, config.model)
    versions = {
        name: store.put(folder / name, base=base, limits=Limits(max_rank=64)).version
        for name in ("a0", "a1", "a2")
    }
    cache = adapter_cache(config, model, store)
    named = [replace(p, adapter=p.adapter and versions[p.adapter]) for p in prompts]
    try:
        return Offline(config, model, cache, records_logits=True).run(named)
    finally:
        cache.close()


@pytest.fixture
def eager(
    config: EngineConfig, model: LoadedModel, folder: Path, prompts: list[Prompt]
) -> list[Completion]:
    return said(config, model, folder, prompts)


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_an_engine_with_graphs_says_what_one_without_says(
    config: EngineConfig,
    model: LoadedModel,
    folder: Path,
    prompts: list[Prompt],
    eager: list[Completion],
    steps_ahead: int,
) -> None:
    device = FakeGpu()
    graphed = said(
        replace(config, steps_ahead=steps_ahead), replace(model, device=device), folder, prompts
    )
    for mine, theirs in zip(graphed, eager, strict=True):
        assert mine.token_ids == theirs.token_ids
        assert mine.logits is not None
        assert theirs.logits is not None
        assert torch.equal(mine.logits, theirs.logits)
    assert device.num_replays > 20
    for kind in (device.graphs[::2], device.graphs[1::2]):  # without LoRA, with it
        assert any(graph.num_replays for graph in kind)


def test_graphs_can_be_switched_off(
    config: EngineConfig, model: LoadedModel, folder: Path, prompts: list[Prompt]
) -> None:
    device = FakeGpu()
    said(replace(config, enforce_eager=True), replace(model, device=device), folder, prompts[:2])
    assert device.graphs == []


def test_a_step_waits_for_the_copies_of_its_own_blocks_alone(graphed: Graphed) -> None:
    device = FakeGpu()
    shape = KvShape(1, 1, BLOCK, 8, torch.float32)
    kv, host = device.allocate_kv(shape, 6), device.allocate_host_kv(shape, 4)
    for i in range(6):
        kv[0].k[i], kv[0].v[i] = float(i), float(i)
    silent = type("Silent", (), {"forward": staticmethod(lambda *_: None)})()
    runner = ModelRunner(silent, kv, MemoryAdapters((), num_slots=0), Sampler(), device, host)

    def step(*blocks: int) -> None:
        seq = Sequence("r", (1, 2, 3), SamplingParams(max_tokens=1), "acme", 0.0)
        seq.block_table = list(blocks)
        runner.collect(runner.launch(StepPlan([ScheduledTokens(seq, 0, 2, False)])))

    runner.copy_blocks([BlockCopy(3, 0, "to_host"), BlockCopy(4, 1, "to_host")])
    step(1, 2)
    assert device.waits == []
    step(2, 4)  # block 4 has been given away
    assert len(device.waits) == 1
    assert host[0].k[:2, 0, 0, 0].tolist() == [3, 4]
    runner.copy_blocks([BlockCopy(0, 5, "to_device")])
    step(5)
    assert len(device.waits) == 2
    assert float(kv[0].v[5, 0, 0, 0]) == 3
    step(5)
    assert len(device.waits) == 2
