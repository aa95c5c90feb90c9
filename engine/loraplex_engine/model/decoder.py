"""One decoder for all supported families, driven by ModelConfig; one forward for all rows of a step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from loraplex_adapters.layout import ProjectionSpec, SliceSpec
from loraplex_adapters.slot_extras import SlotExtras
from loraplex_engine.batch import Batch
from loraplex_engine.config import Quantization
from loraplex_engine.device import LayerKv, return_freed_memory
from loraplex_engine.model.config import ModelConfig
from loraplex_engine.model.extras import AddedLogits, Logits, added_logits, embed
from loraplex_engine.model.families import NormPlacement
from loraplex_engine.model.feed_forward import ACTIVATIONS, Experts, FeedForward, expert_specs
from loraplex_engine.model.layers import Lora, NoNorm, Projection, RmsNorm, Scale
from loraplex_engine.model.rotary import Rope, RotaryTable
from loraplex_engine.model.weights import Checkpoint
from loraplex_kernels.attention import paged_attention, rotary_write_kv
from loraplex_kernels.linear import PackedWeight, int8_layout, pack_weight
from loraplex_kernels.lora import Slab


class NormNames(NamedTuple):
    """The checkpoint's names of a layer's norms, by place: into and out of attention and feed-forward."""

    input: str | None
    attention_output: str | None
    mlp_input: str | None
    mlp_output: str | None


NORM_NAMES: dict[NormPlacement, NormNames] = {
    "before": NormNames("input_layernorm", None, "post_attention_layernorm", None),
    "after": NormNames(None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
    "around": NormNames(
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
}


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    input_norm: RmsNorm | NoNorm
    qkv: Projection
    q_norm: RmsNorm | None
    k_norm: RmsNorm | None
    rotary: RotaryTable
    window: int | None
    o: Projection
    attention_output: RmsNorm | Scale | None
    mlp_norm: RmsNorm | NoNorm
    mlp: FeedForward | Experts
    mlp_output: RmsNorm | Scale | None


def projection_layout(config: ModelConfig) -> tuple[ProjectionSpec, ...]:
    """The fused projections an adapter may change, by the names of slabs and of PEFT modules."""
    hidden, inner = config.hidden_size, config.intermediate_size
    heads, kv_heads = (n * config.head_dim for n in (config.num_heads, config.num_kv_heads))

    def spec(name: str, in_features: int, **out_features: int) -> ProjectionSpec:
        parent = "self_attn" if name.endswith((".qkv", ".o")) else "mlp"
        prefix = f"model.{name.rpartition('.')[0]}.{parent}"
        slices = (SliceSpec(f"{prefix}.{module}", n) for module, n in out_features.items())
        return ProjectionSpec(name, in_features, tuple(slices))

    qkv = {"q_proj": heads, "k_proj": kv_heads, "v_proj": kv_heads}
    gate_up = {"gate_proj": inner, "up_proj": inner}
    if config.has_fused_modules:
        qkv, gate_up = {"qkv_proj": sum(qkv.values())}, {"gate_up_proj": 2 * inner}
    layout = []
    for i in range(config.num_layers):
        name = f"layers.{i}"
        layout += [
            spec(f"{name}.qkv", hidden, **qkv),
            spec(f"{name}.o", heads, o_proj=hidden),
        ]
        if config.experts is not None and config.layers[i].has_experts:
            layout += expert_specs(name, f"model.{name}", hidden, config.experts)
        else:
            layout += [
                spec(f"{name}.gate_up", hidden, **gate_up),
                spec(f"{name}.down", inner, down_proj=hidden),
            ]
    head = ProjectionSpec("lm_head", hidden, (SliceSpec("lm_head", config.vocab_size),))
    return (*layout, head)


class LayerBuilder:
    """Builds layers from a checkpoint, and one rotary table for all layers that turn alike."""

    def __init__(
        self,
        config: ModelConfig,
        checkpoint: Checkpoint,
        max_position: int,
        quantization: Quantization,
    ) -> None:
        self._config = config
        self._layout = int8_layout(checkpoint.dtype) if quantization == "int8" else None
        self._checkpoint = checkpoint
        self._max_position = max_position
        self._specs = {spec.name: spec for spec in projection_layout(config)}
        self._tables: dict[Rope | None, RotaryTable] = {}

    def build(self, i: int) -> DecoderLayer:
        config, prefix = self._config, f"model.layers.{i}"
        names = NORM_NAMES[config.norms]
        attention = f"{prefix}.self_attn"
        has_qk_norm = config.qk_norm != "none"
        layer = DecoderLayer(
            input_norm=self._input(prefix, names.input),
            qkv=self._projection(f"layers.{i}.qkv", config.has_qkv_bias),
            q_norm=self.norm(f"{attention}.q_norm") if has_qk_norm else None,
            k_norm=self.norm(f"{attention}.k_norm") if has_qk_norm else None,
            rotary=self._rotary(config.layers[i].rope),
            window=config.layers[i].window,
            o=self._projection(f"layers.{i}.o", config.has_attention_bias),
            attention_output=self._output(prefix, names.attention_output),
            mlp_norm=self._input(prefix, names.mlp_input),
            mlp=self._experts(i) if config.layers[i].has_experts else self._mlp(f"layers.{i}"),
            mlp_output=self._output(prefix, names.mlp_output),
        )
        return_freed_memory()  # of weights that were read to be packed
        return layer

    def _mlp(self, name: str) -> FeedForward:
        has_bias = self._config.has_mlp_bias
        return FeedForward(
            self._projection(f"{name}.gate_up", has_bias),
            self._projection(f"{name}.down", has_bias),
            ACTIVATIONS[self._config.activation],
        )

    def _experts(self, i: int) -> Experts:
        experts = self._config.experts
        assert experts is not None
        return Experts(
            self._projection(f"layers.{i}.router", has_bias=False, is_exact=True),
            tuple(self._mlp(f"layers.{i}.experts.{e}") for e in range(experts.count)),
            experts.per_token,
            experts.has_normed_weights,
        )

    def packed(self, weight: torch.Tensor) -> PackedWeight:
        return pack_weight(weight, self._layout)

    def norm(self, name: str) -> RmsNorm:
        weight = self._checkpoint.tensor(f"{name}.weight")
        return RmsNorm(name, weight, self._config.rms_norm_eps, self._config.norm_offset)

    def _input(self, prefix: str, name: str | None) -> RmsNorm | NoNorm:
        return NoNorm() if name is None else self.norm(f"{prefix}.{name}")

    def _output(self, prefix: str, name: str | None) -> RmsNorm | Scale | None:
        if name is not None:
            return self.norm(f"{prefix}.{name}")
        scale = self._config.residual_scale
        return None if scale is None else Scale(scale)

    def _projection(self, name: str, has_bias: bool, *, is_exact: bool = False) -> Projection:
        """An exact one is not quantised: a router is small, and its errors are other experts."""
        modules = [piece.module for piece in self._specs[name].slices]
        weight = self._checkpoint.fused([f"{module}.weight" for module in modules])
        return Projection(
            name,
            pack_weight(weight) if is_exact else self.packed(weight),
            self._checkpoint.fused([f"{module}.bias" for module in modules]) if has_bias else None,
        )

    def _rotary(self, rope: Rope | None) -> RotaryTable:
        if rope not in self._tables:
            self._tables[rope] = RotaryTable.build(
                rope, self._config.head_dim, self._max_position, self._checkpoint.device
            )
        return self._tables[rope]


class Decoder:
    """Weights on the device, and the forward pass. Holds no state of any sequence."""

    def __init__(
        self,
        config: ModelConfig,
        checkpoint: Checkpoint,
        max_position: int,
        quantization: Quantization = "none",
    ) -> None:
        self.config = config
        self.embedding = checkpoint.tensor("model.embed_tokens.weight")
        builder = LayerBuilder(config, checkpoint, max_position, quantization)
        self.layers = [builder.build(i) for i in range(config.num_layers)]
        self.norm = builder.norm("model.norm")
        head = self.embedding
        if not config.ties_embeddings:
            head = checkpoint.tensor("lm_head.weight")
        self.lm_head = Projection("lm_head", builder.packed(head))
        # As a tensor it is rounded to the model's type before it multiplies
        scale = config.embedding_scale
        self.embedding_scale = None if scale is None else self.embedding.new_tensor(scale)
        return_freed_memory()

    @torch.inference_mode()
    def forward(
        self,
        batch: Batch,
        kv: list[LayerKv],
        slabs: Mapping[str, Slab],
        extras: Mapping[int, SlotExtras],
    ) -> Logits | None:
        """Logits of the rows that sample, and the new KV written in place; None if no row samples."""
        device = batch.token_ids.device
        lora = Lora.of(batch.lora, slabs, extras, device)
        residual = embed(batch.token_ids, self.embedding, () if lora is None else lora.own)
        if self.embedding_scale is not None:
            residual *= self.embedding_scale
        x = self.layers[0].input_norm(residual, None, lora)
        for layer, layer_kv in zip(self.layers, kv, strict=True):
            if layer is not self.layers[0]:
                x = layer.input_norm(x, residual, lora)
            attended = self._attend(layer, layer.qkv(x, lora), batch, layer_kv, lora)
            if layer is self.layers[-1]:
                # Beyond the last keys and values, only rows that sample matter.
                if len(batch.sample_rows) == 0:
                    return None
                attended, residual = attended[batch.sample_rows], residual[batch.sample_rows]
                lora = Lora.of(batch.sample_lora, slabs, extras, device)
            x = layer.o(attended, lora)
            if layer.attention_output is not None:
                x = layer.attention_output(x, None, lora)
            x = layer.mlp_norm(x, residual, lora)
            x = layer.mlp(x, lora)
            if layer.mlp_output is not None:
                x = layer.mlp_output(x, None, lora)
        x = self.norm(x, residual, lora)
        logits = Logits(self._finish(self.lm_head(x, lora)))
        if lora is None or not lora.own:
            return logits
        added = added_logits(x, lora.own)
        return logits._replace(added=tuple(AddedLogits(rows, self._finish(y)) for rows, y in added))

    def _finish(self, logits: torch.Tensor) -> torch.Tensor:
        """Scale and cap the logits, in place."""
        scale, cap = self.config.logits_scale, self.config.logits_softcap
        if scale is not None:
            logits *= scale
        if cap is not None:
            logits.div_(cap).tanh_().mul_(cap)
        return logits

    def _attend(
        self,
        layer: DecoderLayer,
        qkv: torch.Tensor,
        batch: Batch,
        kv: LayerKv,
        lora: Lora | None,
    ) -> torch.Tensor:
        """Store the new keys and values; what each row's heads see, [num_rows, heads * head_dim]."""
        config = self.config
        heads = qkv.view(len(qkv), -1, config.head_dim)
        k_at, v_at = config.num_heads, config.num_heads + config.num_kv_heads
        q, k, v = heads[:, :k_at], heads[:, k_at:v_at], heads[:, v_at:]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = layer.q_norm.of_heads(q, lora), layer.k_norm.of_heads(k, lora)
        cos, sin = layer.rotary.cos, layer.rotary.sin
        rotary_write_kv(q, k, v, cos, sin, batch.positions, kv.k, kv.v, batch.slot_mapping)
        attended = paged_attention(
            q,
            kv.k,
            kv.v,
            batch.block_tables,
            batch.query_start,
            batch.context_lengths,
            scale=config.attention_scale,
            window=layer.window,
            softcap=config.attention_softcap,
            companies=batch.companies,
        )
        return attended.flatten(1)
