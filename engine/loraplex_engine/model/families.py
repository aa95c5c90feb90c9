"""The architectures that the decoder runs: what each fixes, and what it leaves to config.json.

A family is a line here and a line in the parity test.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Raw = Mapping[str, Any]  # a config.json over its family's defaults
NormPlacement = Literal["before", "after", "around"]  # of attention and feed-forward
QkNorm = Literal["none", "heads", "whole"]  # of each head, or of all heads' values together
LayerKind = Literal["full_attention", "sliding_attention"]


def _all_full(raw: Raw, layer: int) -> bool:
    return False


def _all_sliding(raw: Raw, layer: int) -> bool:
    return raw.get("sliding_window") is not None


def _late_sliding(raw: Raw, layer: int) -> bool:
    return bool(raw.get("use_sliding_window")) and layer >= raw["max_window_layers"]


def _all_sliding_if_used(raw: Raw, layer: int) -> bool:
    return bool(raw.get("use_sliding_window")) and _all_sliding(raw, layer)


def _all_but_each(pattern: int) -> Callable[[Raw, int], bool]:
    def is_sliding(raw: Raw, layer: int) -> bool:
        return (layer + 1) % (raw.get("sliding_window_pattern") or pattern) != 0

    return is_sliding


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """What a checkpoint calls the parts of a mixture-of-experts layer."""

    block: str
    router: str
    gate: str
    up: str
    down: str


@dataclass(frozen=True, slots=True)
class Family:
    """An architecture; layer_types of config.json, where there are any, go before `is_sliding`."""

    norms: NormPlacement = "before"
    norm_offset: float = 0.0  # added to the weights of norms
    qk_norm: QkNorm = "none"
    has_qkv_bias: bool = False  # whatever attention_bias says
    has_fused_modules: bool = False  # qkv_proj and gate_up_proj are one module each
    scales_embedding: bool = False  # by the root of hidden_size
    skips_rope: bool = False  # in the layers that no_rope_layers marks with 0
    is_sliding: Callable[[Raw, int], bool] = _all_full
    experts: ExpertNames | None = None  # in the layers that are not dense
    defaults: Raw = field(default_factory=dict)  # of keys that config.json may leave out


GEMMA: dict[str, Any] = {
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
QWEN: dict[str, Any] = {"sliding_window": 4096, "max_window_layers": 28}
QWEN_EXPERTS: dict[str, Any] = {
    "sliding_window": 4096,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": False,
}
FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": Family(is_sliding=_all_sliding, defaults={"sliding_window": 4096}),
    "Qwen2ForCausalLM": Family(has_qkv_bias=True, is_sliding=_late_sliding, defaults=QWEN),
    "Qwen3ForCausalLM": Family(
        qk_norm="heads", is_sliding=_late_sliding, defaults=QWEN | {"head_dim": 128}
    ),
    "SmolLM3ForCausalLM": Family(
        skips_rope=True, defaults={"tie_word_embeddings": True, "rope_theta": 2000000.0}
    ),
    "GraniteForCausalLM": Family(defaults={"attention_multiplier": 1.0}),
    "Olmo2ForCausalLM": Family(norms="after", qk_norm="whole", defaults={"rms_norm_eps": 1e-5}),
    "Olmo3ForCausalLM": Family(
        norms="after",
        qk_norm="whole",
        is_sliding=_all_but_each(4),
        defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096, "rope_theta": 500000.0},
    ),
    "Gemma2ForCausalLM": Family(
        norms="around",
        norm_offset=1.0,
        scales_embedding=True,
        is_sliding=_all_but_each(2),
        defaults=GEMMA | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    ),
    "Gemma3ForCausalLM": Family(
        norms="around",
        norm_offset=1.0,
        qk_norm="heads",
        scales_embedding=True,
        is_sliding=_all_but_each(6),
        defaults=GEMMA | {"rope_theta": 1000000.0, "rope_local_base_freq": 10000.0},
    ),
    "Phi3ForCausalLM": Family(
        has_fused_modules=True, is_sliding=_all_sliding, defaults={"rms_norm_eps": 1e-5}
    ),
    "MixtralForCausalLM": Family(
        is_sliding=_all_sliding,
        experts=ExpertNames("block_sparse_moe", "gate", gate="w1", up="w3", down="w2"),
        defaults={
            "rms_norm_eps": 1e-5,
            "rope_theta": 1000000.0,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
        },
    ),
    "Qwen3MoeForCausalLM": Family(
        qk_norm="heads",
        is_sliding=_all_sliding_if_used,
        experts=ExpertNames("mlp", "gate", gate="gate_proj", up="up_proj", down="down_proj"),
        defaults=QWEN_EXPERTS,
    ),
}
