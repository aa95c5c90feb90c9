"""A model's shape, read from its folder's config.json; what the decoder cannot run is refused here."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loraplex_engine.errors import UnsupportedModel

ARCHITECTURES = ("LlamaForCausalLM",)
ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding; the low and high frequency factors belong to llama3 scaling."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a decoder; dtype is the checkpoint's own."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: Rope
    max_position: int
    ties_embeddings: bool
    has_attention_bias: bool
    has_mlp_bias: bool
    eos_token_ids: frozenset[int]
    dtype: str


def read_model_config(folder: Path) -> ModelConfig:
    """Read config.json, and the end tokens of generation_config.json where there is one."""
    raw = _read_json(folder / "config.json")
    architecture = next(iter(raw.get("architectures") or ["none"]))
    if architecture not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{architecture} is not supported; these are: {', '.join(ARCHITECTURES)}",
            architecture=architecture,
        )
    if raw.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel(f"the activation {raw['hidden_act']} is not supported; silu is")
    generation = folder / "generation_config.json"
    eos = _read_json(generation).get("eos_token_id") if generation.exists() else None
    num_heads = raw["num_attention_heads"]
    return ModelConfig(
        architecture=architecture,
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=raw.get("num_key_value_heads") or num_heads,
        head_dim=raw.get("head_dim") or raw["hidden_size"] // num_heads,
        rms_norm_eps=raw.get("rms_norm_eps", 1e-6),
        rope=_rope(raw),
        max_position=raw["max_position_embeddings"],
        ties_embeddings=raw.get("tie_word_embeddings", False),
        has_attention_bias=raw.get("attention_bias", False),
        has_mlp_bias=raw.get("mlp_bias", False),
        eos_token_ids=_token_ids(eos if eos is not None else raw.get("eos_token_id")),
        dtype=raw.get("dtype") or raw.get("torch_dtype") or "float32",
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        parsed: dict[str, Any] = json.loads(path.read_text())
    except OSError as error:
        raise UnsupportedModel(f"{path} cannot be read: {error.strerror}") from error
    return parsed


def _token_ids(value: int | list[int] | None) -> frozenset[int]:
    return frozenset([value] if isinstance(value, int) else value or [])


def _rope(raw: dict[str, Any]) -> Rope:
    """Both spellings: rope_parameters (transformers 5), and rope_theta with rope_scaling."""
    fields = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = fields.get("rope_type") or fields.get("type") or "default"
    theta = fields.get("rope_theta") or raw.get("rope_theta") or 10000.0
    if kind not in ROPE_TYPES:
        raise UnsupportedModel(
            f"rope scaling {kind!r} is not supported; these are: {', '.join(ROPE_TYPES)}"
        )
    if kind == "default":
        return Rope(theta)
    return Rope(
        theta=theta,
        kind=kind,
        factor=fields["factor"],
        low_freq_factor=fields.get("low_freq_factor", 1.0),
        high_freq_factor=fields.get("high_freq_factor", 4.0),
        original_max_position=fields.get("original_max_position_embeddings", 0),
    )
