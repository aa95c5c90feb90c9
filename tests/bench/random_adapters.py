"""Sixteen random PEFT adapters a00..a15 on all seven projections: rank 8 where even, 16 where odd."""

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

NUM_ADAPTERS = 16
SEED = 1000
RELATIVE_NORM = 0.08  # of scale * B A against the weight it is added to
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def make_adapters(model_folder: Path, folder: Path) -> None:
    """Write those that are missing, each named by its number."""
    for index in range(NUM_ADAPTERS):
        target = folder / f"a{index:02d}"
        if not (target / "adapter_model.safetensors").exists():
            _make(model_folder, target, rank=16 if index % 2 else 8, seed=SEED + index)


def _make(model_folder: Path, target: Path, rank: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    with safe_open(model_folder / "model.safetensors", "pt") as model:
        for key in sorted(model.keys()):
            path = key.removesuffix(".weight")
            if path.rpartition(".")[2] not in TARGETS:
                continue
            weight = model.get_tensor(key).float()
            a = torch.randn(rank, weight.shape[1], generator=generator) / weight.shape[1] ** 0.5
            b = torch.randn(weight.shape[0], rank, generator=generator)
            b *= RELATIVE_NORM * weight.norm() / (2.0 * (b @ a)).norm()
            prefix = f"base_model.model.{path}"
            tensors[f"{prefix}.lora_A.weight"] = a.to(torch.bfloat16)
            tensors[f"{prefix}.lora_B.weight"] = b.to(torch.bfloat16)
    target.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": TARGETS,
    }
    (target / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(tensors, target / "adapter_model.safetensors", metadata={"format": "pt"})
