"""What a GPU would have to compile is launched before the first request, and nothing else after it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from tests.engine.fake_gpu import FakeGpu
from tests.engine.tiny import ALL_MODULES, make_adapter, make_model
from tests.kernels.launches import Launch, recorded_launches

from loraplex_adapters.cache import AdapterCache
from loraplex_adapters.layout import BaseModel
from loraplex_adapters.manifest import Limits
from loraplex_adapters.store import AdapterStore
from loraplex_engine import build
from loraplex_engine.build import LoadedModel, adapter_cache, load_model
from loraplex_engine.config import EngineConfig
from loraplex_engine.device import LayerKv
from loraplex_engine.first_launches import launch_every_kernel
from loraplex_engine.messages import SamplingParams
from loraplex_engine.model.extras import Logits
from loraplex_engine.offline import Offline, Prompt
from loraplex_engine.sampler import Sampler
from loraplex_engine.scheduling.policy import ScheduledTokens
from loraplex_engine.sequence import Sequence
from loraplex_kernels import activation, kv_store, lora, norm, sampling
from loraplex_kernels import attention as attention_op
from loraplex_kernels.device import implementation
from loraplex_kernels.sampling import reference as sampling_reference

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

OPS = (lora, attention_op, kv_store, norm, activation)
HOT = SamplingParams(max_tokens=4, temperature=0.8, seed=3, ignore_eos=True)
WAYS = (
    replace(HOT, temperature=0.0),
    HOT,
    replace(HOT, top_k=5),
    replace(HOT, top_p=0.8, min_p=0.1),
    replace(HOT, presence_penalty=0.5, logprobs=2),
    replace(HOT, temperature=0.0, repetition_penalty=1.2, top_k=3),
)


class CompilingGpu(FakeGpu):
    """As far as chunks of the chunk table and launches of kernels go, too."""

    @property
    def has_long_chunks(self) -> bool:
        return True


class Launched:
    """An op of a GPU: its launches are taken down, and the CPU computes; LoRA's long chunks it does not."""

    def __init__(self, op: str, serving: ModuleType | None) -> None:
        self._launcher, self._serving = import_module(f"{op}._triton"), serving

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            getattr(self._launcher, name)(*arguments)
            return self._serving and getattr(self._serving, name)(*arguments)

        return call


def launched(op: str, device_type: str) -> Launched:
    return Launched(op, None if op == lora.__name__ else implementation(op, device_type))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Launch]]:
    for op in OPS:
        monkeypatch.setattr(op, "implementation", launched)
    drawing = Launched(sampling.__name__, sampling_reference)
    monkeypatch.setattr(sampling, "_serving", lambda _: drawing)
    with recorded_launches() as launches:
        yield launches


class Stand(NamedTuple):
    config: EngineConfig
    model: LoadedModel
    cache: AdapterCache
    versions: list[str]


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    folder = tmp_path_factory.mktemp("launches")
    model, source = make_model(folder / "model", vocab_size=208), folder / "model"
    store, base = AdapterStore(folder / "store"), BaseModel.from_checkpoint(None, source)
    versions = []
    for rank in (4, 16):
        adapter = folder / f"r{rank}"
        make_adapter(model, adapter, rank=rank, alpha=rank, modules=ALL_MODULES, seed=rank)
        versions.append(store.put(adapter, base=base, limits=Limits(max_rank=64)).version)
    config = EngineConfig(
        model=source,
        dtype="bfloat16",
        max_loras=2,
        max_num_seqs=6,
        max_num_batched_tokens=512,
        cpu_kv_cache_bytes=2**20,
        threads=1,
    )
    loaded = replace(load_model(config), device=CompilingGpu())
    cache = adapter_cache(config, loaded, store)
    yield Stand(config, loaded, cache, versions)
    cache.close()


def prompts(versions: list[str]) -> list[Prompt]:
    """Alone and together, short and long, of the base model and of adapters; every way to draw a token."""
    lengths = (1, 16, 33, 200, 180, 190)
    return [
        Prompt([(31 * i + 7 * j) % 199 for j in range(length)], adapter, way, arrives=10 * round_)
        for round_ in range(2)
        for i, (length, way) in enumerate(zip(lengths, WAYS, strict=True))
        for adapter in ((None, *versions)[(i + round_) % 3],)
    ]


@pytest.mark.parametrize("is_eager", [False, True])
def test_requests_launch_nothing_that_was_not_launched_at_the_start(
    stand: Stand, launches: set[Launch], is_eager: bool
) -> None:
    config = replace(stand.config, enforce_eager=is_eager)
    offline = Offline(config, stand.model, stand.cache)
    ready = set(launches)
    said = offline.run(prompts(stand.versions))
    assert all(len(completion.token_ids) == 4 for completion in said)
    assert len({launch.kernel for launch in ready}) == 11
    assert launches - ready == set()


def test_without_the_first_launches_requests_would_compile(
    stand: Stand, launches: set[Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sampling, prompts, and prompts of adapters: what graphs do not bring along."""
    monkeypatch.setattr(build, "launch_every_kernel", lambda *_: None)
    offline = Offline(stand.config, stand.model, stand.cache)
    ready = set(launches)
    offline.run(prompts(stand.versions))
    late = {launch.kernel for launch in launches - ready}
    assert {"pick_kernel", "keep_kernel", "prefill_kernel", "expand_kernel"} <= late


@pytest.mark.parametrize("vocab_size", [199, 208])
def test_rows_with_tokens_of_their_own_are_drawn_by_kernels_that_are_there(
    launches: set[Launch], vocab_size: int
) -> None:
    """However many an adapter adds to the vocabulary."""
    silent: Any = SimpleNamespace(forward=lambda *_: Logits(torch.randn(1, vocab_size).bfloat16()))
    kv = [LayerKv(torch.empty(2, 1, 16, 8), torch.empty(2, 1, 16, 8))]
    launch_every_kernel(silent, kv, {}, CompilingGpu())
    ready = set(launches)
    items = [ScheduledTokens(Sequence("r", (1,), way, "acme", 0.0), 0, 1, True) for way in WAYS]
    for more in range(18):
        Sampler().sample(torch.randn(len(items), vocab_size + more).bfloat16(), items)
        for item in items:
            Sampler().sample(torch.randn(1, vocab_size + more).bfloat16(), [item])
    assert launches - ready == set()
