"""Adapter folders made by hand, byte by byte where it matters."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from loraplex_adapters.header import LORA_DTYPES
from loraplex_adapters.layout import BaseModel, ProjectionSpec, SliceSpec

HIDDEN, KV, INTERMEDIATE, NUM_LAYERS = 16, 8, 24, 2
Q = "model.layers.0.self_attn.q_proj"
V = "model.layers.1.self_attn.v_proj"
DOWN = "model.layers.1.mlp.down_proj"
CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": ["q_proj", "v_proj"],
    "base_model_name_or_path": "tiny",
}


def projections() -> tuple[ProjectionSpec, ...]:
    """The fused projections of a tiny Llama with grouped queries."""
    made = []
    for layer in range(NUM_LAYERS):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        qkv = (("q_proj", HIDDEN), ("k_proj", KV), ("v_proj", KV))
        made += [
            ProjectionSpec(
                f"{layer}.qkv", HIDDEN, tuple(SliceSpec(f"{attention}.{n}", w) for n, w in qkv)
            ),
            ProjectionSpec(f"{layer}.o", HIDDEN, (SliceSpec(f"{attention}.o_proj", HIDDEN),)),
            ProjectionSpec(
                f"{layer}.gate_up",
                HIDDEN,
                tuple(SliceSpec(f"{mlp}.{n}", INTERMEDIATE) for n in ("gate_proj", "up_proj")),
            ),
            ProjectionSpec(f"{layer}.down", INTERMEDIATE, (SliceSpec(f"{mlp}.down_proj", HIDDEN),)),
        ]
    return tuple(made)


BASE = BaseModel.from_projections("tiny", projections())


def lora_tensors(
    modules: tuple[str, ...] = (Q, V),
    rank: int = 4,
    seed: int = 0,
    prefix: str = "base_model.model.",
) -> dict[str, np.ndarray]:
    """Random float32 factors, named as PEFT saves them."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for module in modules:
        shape = BASE.modules[module]
        a = rng.standard_normal((rank, shape.in_features), np.float32)
        b = rng.standard_normal((shape.out_features, rank), np.float32)
        tensors[f"{prefix}{module}.lora_A.weight"] = a
        tensors[f"{prefix}{module}.lora_B.weight"] = b
    return tensors


def safetensors_bytes(entries: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> bytes:
    """A safetensors file of (dtype, shape, bytes), in the order given."""
    header, data = {}, b""
    for name, (dtype, shape, raw) in entries.items():
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        data += raw
    return with_header(header, data)


def with_header(header: object, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def float32_file(tensors: Mapping[str, np.ndarray]) -> bytes:
    return safetensors_bytes({n: ("F32", t.shape, t.tobytes()) for n, t in tensors.items()})


def zeros_file(shapes: Mapping[str, tuple[int, ...]], dtype: str = "F32") -> bytes:
    element = LORA_DTYPES.get(dtype, 1)
    return safetensors_bytes(
        {n: (dtype, shape, bytes(math.prod(shape) * element)) for n, shape in shapes.items()}
    )


def write_adapter(
    folder: Path, weights: bytes | Mapping[str, np.ndarray] | None = None, **config: Any
) -> Path:
    """A folder with PEFT's two files; `config` overrides the keys of CONFIG."""
    folder.mkdir(parents=True, exist_ok=True)
    if weights is None:
        weights = lora_tensors(rank=config.get("r") or CONFIG["r"])
    content = weights if isinstance(weights, bytes) else float32_file(weights)
    (folder / "adapter_model.safetensors").write_bytes(content)
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
    return folder
