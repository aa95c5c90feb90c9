"""Models and adapters in the shape of real ones, their weights made up, for bench_gpu.py."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from tests.engine.tiny import ALL_MODULES

from loraplex_adapters.cache import AdapterCache
from loraplex_adapters.extras import LoraFactors
from loraplex_adapters.known_tokens import KnownTokens
from loraplex_adapters.loader import AdapterWeights
from loraplex_adapters.store import AdapterStore
from loraplex_engine.build import LoadedModel, build_engine
from loraplex_engine.config import EngineConfig
from loraplex_engine.core import Engine
from loraplex_engine.device import Device
from loraplex_engine.model.adaptable import adaptable_modules
from loraplex_engine.model.config import ModelConfig, read_model_config
from loraplex_engine.model.decoder import Decoder, projection_layout
from loraplex_engine.offline import NoText

KV_BYTES = 6 << 30
HOST_BYTES = 256 << 20
MAX_RANK = 64


class Shape(NamedTuple):
    """A model as Hugging Face's config.json has it."""

    name: str
    config: dict[str, Any]
    has_load_targets: bool = False  # of seconds, which are for 8B


QWEN = Shape(
    "Qwen3-0.6B",
    {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
        "max_position_embeddings": 4096,
        "dtype": "bfloat16",
    },
)
LLAMA = Shape(
    "Llama-3-8B",
    {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "rope_theta": 5e5,
        "max_position_embeddings": 4096,
        "dtype": "bfloat16",
    },
    has_load_targets=True,
)
TINY = Shape(
    "rehearsal",
    QWEN.config
    | {"vocab_size": 199, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    | {"max_position_embeddings": 256},
)


class RandomWeights:
    """What the decoder asks a checkpoint for, made up on the device."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self._modules = adaptable_modules(config).modules

    def tensor(self, name: str) -> torch.Tensor:
        return self.fused([name])

    def fused(self, names: Sequence[str]) -> torch.Tensor:
        return torch.cat([self._made(name.removesuffix(".weight")) for name in names])

    def _made(self, module: str) -> torch.Tensor:
        shape = self._modules[module].weight_shape
        if len(shape) == 1:
            return torch.ones(shape, dtype=self.dtype, device=self.device)
        return torch.randn(shape, dtype=self.dtype, device=self.device).mul_(shape[-1] ** -0.5)


def random_model(shape: Shape, folder: Path, torch_device: torch.device) -> LoadedModel:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape.config))
    config, device = read_model_config(folder), Device(torch_device.type)  # type: ignore[arg-type]  # cpu or cuda
    weights = RandomWeights(config, torch.bfloat16, device.torch_device)
    decoder = Decoder(config, weights, config.max_position)  # type: ignore[arg-type]  # all that it asks for
    return LoadedModel(config, decoder, device, torch.bfloat16, shape.name)


class NoTokens(KnownTokens):
    """Of versions that are in no store."""

    def of(self, version: str) -> None:
        return None


class RandomAdapters(AdapterCache):
    """Versions «RANK-NUMBER», cut from one pool of factors where they would be read."""

    def __init__(self, model: LoadedModel, store: AdapterStore, max_loras: int) -> None:
        layout = projection_layout(model.config)
        super().__init__(
            store,
            layout,
            max_loras=max_loras,
            max_lora_rank=MAX_RANK,
            dtype=model.dtype,
            device=model.device.torch_device,
            host_bytes=0,
        )
        self.tokens = NoTokens(store)
        self._pool = {
            piece.module: tuple(
                torch.randn(MAX_RANK, width, dtype=model.dtype).mul_(0.05)
                for width in (spec.in_features, piece.out_features)
            )
            for spec in layout
            if spec.name != "lm_head" and max_loras
            for piece in spec.slices
        }
        if model.device.is_cuda:
            self._pool = {
                name: tuple(factor.pin_memory() for factor in pair)
                for name, pair in self._pool.items()
            }

    def _read(self, version: str) -> AdapterWeights:
        rank = int(version.partition("-")[0])
        return AdapterWeights(
            {name: LoraFactors(a[:rank], b[:rank], 1.0) for name, (a, b) in self._pool.items()}
        )

    def bring(self, versions: Sequence[str]) -> None:
        """Wait until all have a slot."""
        while absent := [v for v in versions if self.state(v) != "resident"]:
            for version in absent:
                self.start_load(version)
            for outcome in self.poll():
                assert outcome.error is None, outcome.error
            time.sleep(0.0005)


@dataclass(frozen=True, slots=True)
class Running:
    engine: Engine
    adapters: RandomAdapters


@contextmanager
def running(
    model: LoadedModel, folder: Path, *, max_loras: int, max_num_seqs: int, is_eager: bool = False
) -> Iterator[Running]:
    """An engine over a model, with room for some adapters; its memory is given back."""
    config = EngineConfig(
        model=folder,
        max_num_seqs=max_num_seqs,
        max_loras=max(1, max_loras),  # without slots no adapter is ever in a step
        max_lora_rank=MAX_RANK,
        host_kv_bytes=HOST_BYTES if model.device.is_cuda else 0,
        cpu_kv_cache_bytes=8 << 20,
        enforce_eager=is_eager,
        enable_prefix_caching=False,
    )
    adapters = RandomAdapters(model, AdapterStore(folder / "store"), max_loras)
    if model.device.is_cuda:
        torch.cuda.empty_cache()
        memory = model.device.memory()
        used = memory.total_bytes - memory.available_bytes
        config = replace(config, gpu_memory_utilization=(used + KV_BYTES) / memory.total_bytes)
    try:
        yield Running(build_engine(config, model, adapters, NoText()), adapters)
    finally:
        adapters.close()


def save_adapter(model: LoadedModel, folder: Path, rank: int) -> None:
    """A random PEFT adapter on all seven projections."""
    folder.mkdir(parents=True)
    tensors = {}
    for spec in projection_layout(model.config):
        for piece in spec.slices if spec.name != "lm_head" else ():
            prefix = f"base_model.model.{piece.module}"
            a, b = torch.randn(rank, spec.in_features), torch.randn(piece.out_features, rank)
            tensors[f"{prefix}.lora_A.weight"] = a.to(torch.bfloat16)
            tensors[f"{prefix}.lora_B.weight"] = b.to(torch.bfloat16)
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank}
    config |= {"target_modules": ALL_MODULES, "bias": "none", "lora_dropout": 0.0}
    config["base_model_name_or_path"] = model.fingerprint
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
