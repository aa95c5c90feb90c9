"""Sixteen random PEFT adapters a00..a15 on all seven projections; of rank 8 and 16 unless asked."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file

NUM_ADAPTERS = 16
NUMBERS = range(NUM_ADAPTERS)
SEED = 1000
SCALE = 2
RELATIVE_NORM = 0.08  # of scale * B A against the weight it is added to
WEIGHTS = "adapter_model.safetensors"
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Module(NamedTuple):
    path: str
    out_features: int
    in_features: int
    norm: float


def make_adapters(
    model_folder: Path,
    folder: Path,
    ranks: Sequence[int] = (8, 16),
    numbers: Sequence[int] = NUMBERS,
) -> None:
    """Write those that are missing, each named by its number; their ranks take turns."""
    folders = [folder / f"a{index:02d}" for index in numbers]
    missing = [target for target in folders if not (target / WEIGHTS).exists()]
    modules = _modules(model_folder) if missing else []
    for target in missing:
        index = int(target.name[1:])
        _make(modules, target, rank=ranks[index % len(ranks)], seed=SEED + index)


def _modules(model_folder: Path) -> list[Module]:
    found = []
    with safe_open(model_folder / "model.safetensors", "pt") as model:
        for key in sorted(model.keys()):
            path = key.removesuffix(".weight")
            if path.rpartition(".")[2] in TARGETS:
                weight = model.get_tensor(key).float()
                found.append(Module(path, *weight.shape, weight.norm().item()))
    return found


def _make(modules: list[Module], target: Path, rank: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for module in modules:
        a = torch.randn(rank, module.in_features, generator=generator) / module.in_features**0.5
        b = torch.randn(module.out_features, rank, generator=generator)
        norm = ((b.T @ b) * (a @ a.T)).sum().sqrt()  # of B A
        b *= RELATIVE_NORM * module.norm / (SCALE * norm)
        prefix = f"base_model.model.{module.path}"
        tensors[f"{prefix}.lora_A.weight"] = a.to(torch.bfloat16)
        tensors[f"{prefix}.lora_B.weight"] = b.to(torch.bfloat16)
    target.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "r": rank,
        "lora_alpha": SCALE * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": TARGETS,
    }
    (target / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(tensors, target / WEIGHTS, metadata={"format": "pt"})
