"""A model's shape, read from its folder's config.json; what the decoder cannot run is refused here."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from loraplex_engine.errors import UnsupportedModel
from loraplex_engine.model.families import (
    FAMILIES,
    ExpertNames,
    Family,
    NormPlacement,
    QkNorm,
    Raw,
)
from loraplex_engine.model.rotary import Rope, read_rope

Activation = Literal["silu", "gelu_tanh"]
ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What layers of one model differ in."""

    rope: Rope | None
    window: int | None  # tokens a token sees, itself included
    has_experts: bool  # instead of one feed-forward


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """The mixture of experts in those layers that have one."""

    names: ExpertNames
    count: int
    per_token: int
    intermediate_size: int
    has_normed_weights: bool  # the weights of a token's experts add up to one


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a decoder; dtype is the checkpoint's own. A scale or cap that is None costs nothing."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[LayerConfig, ...]
    experts: ExpertsConfig | None
    rms_norm_eps: float
    norms: NormPlacement
    norm_offset: float
    qk_norm: QkNorm
    activation: Activation
    max_position: int
    ties_embeddings: bool
    has_fused_modules: bool
    has_qkv_bias: bool
    has_attention_bias: bool  # of the output projection
    has_mlp_bias: bool
    attention_scale: float
    attention_softcap: float | None
    embedding_scale: float | None
    residual_scale: float | None
    logits_scale: float | None
    logits_softcap: float | None
    eos_token_ids: frozenset[int]
    dtype: str

    @property
    def num_layers(self) -> int:
        return len(self.layers)


def read_model_config(folder: Path) -> ModelConfig:
    """Read config.json, and the end tokens of generation_config.json where there is one."""
    found = _read_json(folder / "config.json")
    architecture = next(iter(found.get("architectures") or ["none"]))
    family = FAMILIES.get(architecture)
    if family is None:
        raise UnsupportedModel(
            f"{architecture} is not supported; these are: {', '.join(FAMILIES)}",
            architecture=architecture,
        )
    raw = {**family.defaults, **found}
    activation = _activation(raw)
    generation = folder / "generation_config.json"
    eos = _read_json(generation).get("eos_token_id") if generation.exists() else None
    num_heads, has_bias = raw["num_attention_heads"], raw.get("attention_bias", False)
    head_dim = raw.get("head_dim") or raw["hidden_size"] // num_heads
    layers = tuple(_layer(raw, family, i) for i in range(raw["num_hidden_layers"]))
    return ModelConfig(
        architecture=architecture,
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_heads=num_heads,
        num_kv_heads=raw.get("num_key_value_heads") or num_heads,
        head_dim=head_dim,
        layers=layers,
        experts=_experts(raw, family),
        rms_norm_eps=raw.get("rms_norm_eps", 1e-6),
        norms=family.norms,
        norm_offset=family.norm_offset,
        qk_norm=family.qk_norm,
        activation=activation,
        max_position=_max_position(raw, layers),
        ties_embeddings=raw.get("tie_word_embeddings", False),
        has_fused_modules=family.has_fused_modules,
        has_qkv_bias=has_bias or family.has_qkv_bias,
        has_attention_bias=has_bias,
        has_mlp_bias=raw.get("mlp_bias", False),
        attention_scale=_attention_scale(raw, head_dim),
        attention_softcap=raw.get("attn_logit_softcapping"),
        embedding_scale=_embedding_scale(raw, family),
        residual_scale=_unless_one(raw.get("residual_multiplier")),
        logits_scale=_unless_one(1 / raw.get("logits_scaling", 1.0)),
        logits_softcap=raw.get("final_logit_softcapping"),
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


def _layer(raw: Raw, family: Family, layer: int) -> LayerConfig:
    is_sliding = family.is_sliding(raw, layer)
    if raw.get("layer_types"):
        is_sliding = raw["layer_types"][layer] == "sliding_attention"
    kind = "sliding_attention" if is_sliding else "full_attention"
    rope: Rope | None = read_rope(raw, kind, raw["max_position_embeddings"])
    if family.skips_rope:
        interval = raw.get("no_rope_layer_interval", 4)
        has_rope = raw.get("no_rope_layers")
        if not (has_rope[layer] if has_rope else (layer + 1) % interval):
            rope = None
    window = raw["sliding_window"] if is_sliding else None
    return LayerConfig(rope, window, family.experts is not None and not _is_dense(raw, layer))


def _is_dense(raw: Raw, layer: int) -> bool:
    step = raw.get("decoder_sparse_step") or 1
    return layer in (raw.get("mlp_only_layers") or ()) or (layer + 1) % step != 0


def _experts(raw: Raw, family: Family) -> ExpertsConfig | None:
    if family.experts is None:
        return None
    return ExpertsConfig(
        names=family.experts,
        count=raw.get("num_local_experts") or raw["num_experts"],
        per_token=raw["num_experts_per_tok"],
        intermediate_size=raw.get("moe_intermediate_size") or raw["intermediate_size"],
        has_normed_weights=raw["norm_topk_prob"],
    )


def _activation(raw: Raw) -> Activation:
    name = raw.get("hidden_activation") or raw.get("hidden_act") or "silu"
    if name not in ACTIVATIONS:
        raise UnsupportedModel(
            f"the activation {name} is not supported; these are: {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]


def _max_position(raw: Raw, layers: tuple[LayerConfig, ...]) -> int:
    """The longest context; a yarn checkpoint may name the one before it was stretched."""
    stretched = [
        int(layer.rope.factor * layer.rope.original_max_position)
        for layer in layers
        if layer.rope is not None and layer.rope.kind == "yarn"
    ]
    return max(int(raw["max_position_embeddings"]), *stretched, 0)


def _attention_scale(raw: Raw, head_dim: int) -> float:
    if "attention_multiplier" in raw:
        return float(raw["attention_multiplier"])
    return 1 / math.sqrt(raw.get("query_pre_attn_scalar") or head_dim)


def _embedding_scale(raw: Raw, family: Family) -> float | None:
    if family.scales_embedding:
        return math.sqrt(raw["hidden_size"])
    return _unless_one(raw.get("embedding_multiplier"))


def _unless_one(scale: float | None) -> float | None:
    return None if scale is None or scale == 1 else float(scale)
