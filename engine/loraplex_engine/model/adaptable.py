"""What of a model adapters may change: its projections, its norms, its embedding."""

from loraplex_adapters.layout import EMBEDDING, FINAL_NORM, BaseModel, ModuleShape
from loraplex_engine.model.config import ModelConfig
from loraplex_engine.model.decoder import NORM_NAMES, projection_layout


def adaptable_modules(config: ModelConfig) -> BaseModel:
    """By the checkpoint's names."""
    modules = {
        piece.module: ModuleShape(
            projection.in_features,
            piece.out_features,
            has_bias=_has_bias(config, projection.name),
        )
        for projection in projection_layout(config)
        for piece in projection.slices
    }
    modules |= {name: ModuleShape(size, size, "norm") for name, size in _norms(config).items()}
    modules[EMBEDDING] = ModuleShape(config.vocab_size, config.hidden_size, "embedding")
    return BaseModel(None, modules, config.ties_embeddings)


def _has_bias(config: ModelConfig, projection: str) -> bool:
    if projection.endswith(".qkv"):
        return config.has_qkv_bias
    if projection.endswith(".o"):
        return config.has_attention_bias
    return config.has_mlp_bias and projection.endswith((".gate_up", ".down"))


def _norms(config: ModelConfig) -> dict[str, int]:
    heads = {"q_norm": config.num_heads, "k_norm": config.num_kv_heads}
    found = {FINAL_NORM: config.hidden_size}
    for i in range(config.num_layers):
        layer = f"model.layers.{i}"
        names = [name for name in NORM_NAMES[config.norms] if name is not None]
        found |= {f"{layer}.{name}": config.hidden_size for name in names}
        if config.qk_norm != "none":
            for name, count in heads.items():
                width = config.head_dim * (count if config.qk_norm == "whole" else 1)
                found[f"{layer}.self_attn.{name}"] = width
    return found
