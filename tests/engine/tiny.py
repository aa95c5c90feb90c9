"""A tiny random Llama, random PEFT adapters, and the twin of the adapter cache that holds them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import peft
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from loraplex_adapters.layout import ProjectionSpec
from loraplex_engine.scheduling.policy import AdapterState
from loraplex_kernels.lora import LoraSlab

ALL_MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def make_model(folder: Path, *, seed: int = 0, shard_bytes: int | None = None, **shape: Any) -> Any:
    """Save a random model in float32 and return transformers' own."""
    torch.manual_seed(seed)
    defaults: dict[str, Any] = {
        "vocab_size": 199,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "initializer_range": 0.15,
        "eos_token_id": 7,
    }
    model = LlamaForCausalLM(LlamaConfig(**defaults | shape)).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:  # norms and biases start at one and zero, which hides faults
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(folder, max_shard_size=shard_bytes or "1GB")
    return model


def make_adapter(
    model: Any, folder: Path, *, rank: int, alpha: float, modules: list[str], seed: int
) -> None:
    """Save a random adapter, loud enough to change what the model says."""
    torch.manual_seed(seed)
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=modules, lora_dropout=0.0)
    wrapped = peft.get_peft_model(model, config)
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    wrapped.save_pretrained(folder, save_embedding_layers=False)
    wrapped.unload()


class Outcome(NamedTuple):
    version: str
    error: str | None
    seconds: float


@dataclass
class _Load:
    version: str
    polls_left: int


class MemoryAdapters:
    """Adapter slots over PEFT folders; a load takes `polls` calls of poll, a missing folder fails."""

    def __init__(
        self,
        layout: tuple[ProjectionSpec, ...],
        folders: Mapping[str, Path],
        *,
        num_slots: int,
        max_rank: int = 16,
        dtype: torch.dtype = torch.float32,
        polls: int = 1,
    ) -> None:
        self.layout = layout
        self.folders = folders
        self.polls = polls
        self.users: dict[str, int] = {}
        self._slots: list[str | None] = [None] * num_slots
        self._loads: list[_Load] = []
        row_start = torch.arange(num_slots, dtype=torch.int32) * max_rank
        self.slabs = {
            spec.name: LoraSlab.empty(
                spec.in_features, spec.slice_widths, num_slots * max_rank, row_start, dtype
            )
            for spec in layout
        }

    @property
    def resident(self) -> list[str]:
        return [version for version in self._slots if version is not None]

    @property
    def num_free_slots(self) -> int:
        return self._slots.count(None)

    def state(self, adapter: str) -> AdapterState:
        if adapter in self._slots:
            return "resident"
        return "loading" if adapter in [load.version for load in self._loads] else "absent"

    def can_load(self, adapter: str) -> bool:
        idle = [v for v in self._slots if v is None or not self.users.get(v)]
        return len(idle) > len(self._loads)

    def acquire(self, adapter: str) -> None:
        assert adapter in self._slots
        self.users[adapter] = self.users.get(adapter, 0) + 1

    def release(self, adapter: str) -> None:
        self.users[adapter] -= 1
        assert self.users[adapter] >= 0

    def start_load(self, version: str) -> None:
        self._loads.append(_Load(version, self.polls))

    def poll(self) -> list[Outcome]:
        outcomes = []
        for load in list(self._loads):
            load.polls_left -= 1
            if load.polls_left <= 0:
                self._loads.remove(load)
                outcomes.append(self._load(load.version))
        return outcomes

    def slot_of(self, version: str) -> int:
        return self._slots.index(version)

    def pin(self, version: str, pinned: bool) -> None:
        self.users[version] = self.users.get(version, 0) + (1 if pinned else -1)

    def drop(self, version: str) -> None:
        assert not self.users.get(version)
        if version in self._slots:
            self._slots[self._slots.index(version)] = None

    def close(self) -> None:
        self._loads.clear()

    def _load(self, version: str) -> Outcome:
        folder = self.folders.get(version)
        if folder is None:
            return Outcome(version, "no such version", 0.0)
        slot = next(i for i, v in enumerate(self._slots) if v is None or not self.users.get(v))
        self._slots[slot] = version
        config = json.loads((folder / "adapter_config.json").read_text())
        tensors = load_file(folder / "adapter_model.safetensors")
        for spec in self.layout:
            slab = self.slabs[spec.name]
            for s, piece in enumerate(spec.slices):
                key = f"base_model.model.{piece.module}.lora_A.weight"
                slab.rank[slot, s] = 0
                if key in tensors:
                    rank, row = tensors[key].shape[0], int(slab.row_start[slot])
                    slab.a[s, row : row + rank] = tensors[key]
                    b = tensors[key.replace("lora_A", "lora_B")]
                    slab.b[s][row : row + rank] = b.T
                    slab.rank[slot, s] = rank
                    slab.scale[slot, s] = config["lora_alpha"] / config["r"]
        return Outcome(version, None, 0.0)
