"""One decoder for all supported families, driven by ModelConfig; one forward for all rows of a step."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from loraplex_adapters.layout import ProjectionSpec, SliceSpec
from loraplex_engine.batch import Batch
from loraplex_engine.device import LayerKv
from loraplex_engine.model.config import ModelConfig
from loraplex_engine.model.layers import Lora, Projection, RmsNorm, RotaryTable
from loraplex_engine.model.weights import Checkpoint
from loraplex_kernels.activation import silu_and_multiply
from loraplex_kernels.attention import paged_attention, rotary_write_kv
from loraplex_kernels.linear import pack_weight
from loraplex_kernels.lora import LoraSlab


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    input_norm: RmsNorm
    qkv: Projection
    o: Projection
    post_attention_norm: RmsNorm
    gate_up: Projection
    down: Projection


def projection_layout(config: ModelConfig) -> tuple[ProjectionSpec, ...]:
    """The fused projections an adapter may change, by the names of `LoraSlab`s and of PEFT modules."""
    hidden, inner = config.hidden_size, config.intermediate_size
    heads, kv_heads = (n * config.head_dim for n in (config.num_heads, config.num_kv_heads))

    def spec(name: str, in_features: int, **out_features: int) -> ProjectionSpec:
        parent = "self_attn" if name.endswith((".qkv", ".o")) else "mlp"
        prefix = f"model.{name.rpartition('.')[0]}.{parent}"
        slices = (SliceSpec(f"{prefix}.{module}", n) for module, n in out_features.items())
        return ProjectionSpec(name, in_features, tuple(slices))

    layout = []
    for i in range(config.num_layers):
        name = f"layers.{i}"
        layout += [
            spec(f"{name}.qkv", hidden, q_proj=heads, k_proj=kv_heads, v_proj=kv_heads),
            spec(f"{name}.o", heads, o_proj=hidden),
            spec(f"{name}.gate_up", hidden, gate_proj=inner, up_proj=inner),
            spec(f"{name}.down", inner, down_proj=hidden),
        ]
    head = ProjectionSpec("lm_head", hidden, (SliceSpec("lm_head", config.vocab_size),))
    return (*layout, head)


class Decoder:
    """Weights on the device, and the forward pass. Holds no state of any sequence."""

    def __init__(self, config: ModelConfig, checkpoint: Checkpoint, max_position: int) -> None:
        self.config = config
        self.embedding = checkpoint.tensor("model.embed_tokens.weight")
        specs = {spec.name: spec for spec in projection_layout(config)}

        def projection(name: str) -> Projection:
            modules = [piece.module for piece in specs[name].slices]
            is_mlp = name.endswith(("gate_up", "down"))
            has_bias = config.has_mlp_bias if is_mlp else config.has_attention_bias
            return Projection(
                name,
                pack_weight(checkpoint.fused([f"{module}.weight" for module in modules])),
                checkpoint.fused([f"{module}.bias" for module in modules]) if has_bias else None,
            )

        def norm(name: str) -> RmsNorm:
            return RmsNorm(checkpoint.tensor(f"{name}.weight"), config.rms_norm_eps)

        self.layers = [
            DecoderLayer(
                input_norm=norm(f"model.layers.{i}.input_layernorm"),
                qkv=projection(f"layers.{i}.qkv"),
                o=projection(f"layers.{i}.o"),
                post_attention_norm=norm(f"model.layers.{i}.post_attention_layernorm"),
                gate_up=projection(f"layers.{i}.gate_up"),
                down=projection(f"layers.{i}.down"),
            )
            for i in range(config.num_layers)
        ]
        self.norm = norm("model.norm")
        head = self.embedding
        if not config.ties_embeddings:
            head = checkpoint.tensor("lm_head.weight")
        self.lm_head = Projection("lm_head", pack_weight(head))
        self.rotary = RotaryTable.build(
            config.rope, config.head_dim, max_position, checkpoint.device
        )

    @torch.inference_mode()
    def forward(
        self, batch: Batch, kv: list[LayerKv], slabs: Mapping[str, LoraSlab]
    ) -> torch.Tensor | None:
        """Logits of the rows that sample, [num_samples, vocab_size], and the new KV written in place.

        None if no row samples.
        """
        lora = None if batch.lora is None else Lora(batch.lora, slabs)
        residual = F.embedding(batch.token_ids, self.embedding)
        x = self.layers[0].input_norm(residual)
        for layer, layer_kv in zip(self.layers, kv, strict=True):
            if layer is not self.layers[0]:
                x = layer.input_norm(x, residual)
            attended = self._attend(layer.qkv(x, lora), batch, layer_kv)
            if layer is self.layers[-1]:
                # Beyond the last keys and values, only rows that sample matter.
                if len(batch.sample_rows) == 0:
                    return None
                attended, residual = attended[batch.sample_rows], residual[batch.sample_rows]
                lora = None if batch.sample_lora is None else Lora(batch.sample_lora, slabs)
            x = layer.post_attention_norm(layer.o(attended, lora), residual)
            x = layer.down(silu_and_multiply(layer.gate_up(x, lora)), lora)
        return self.lm_head(self.norm(x, residual), lora)

    def _attend(self, qkv: torch.Tensor, batch: Batch, kv: LayerKv) -> torch.Tensor:
        """Store the new keys and values; what each row's heads see, [num_rows, heads * head_dim]."""
        config = self.config
        heads = qkv.view(len(qkv), -1, config.head_dim)
        k_at, v_at = config.num_heads, config.num_heads + config.num_kv_heads
        q, k, v = heads[:, :k_at], heads[:, k_at:v_at], heads[:, v_at:]
        cos, sin = self.rotary.cos, self.rotary.sin
        rotary_write_kv(q, k, v, cos, sin, batch.positions, kv.k, kv.v, batch.slot_mapping)
        attended = paged_attention(
            q,
            kv.k,
            kv.v,
            batch.block_tables,
            batch.query_start,
            batch.context_lengths,
            scale=config.head_dim**-0.5,
        )
        return attended.flatten(1)
