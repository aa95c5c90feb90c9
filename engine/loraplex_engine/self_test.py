"""The self-test of an adapter: a fixed prompt through the slabs, and through weights merged densely.

Both are forward passes of the one decoder with a few blocks of KV of their own, beside the engine's
steps; only how the adapter gets in differs.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from loraplex_adapters.extras import BaseTensors, EmbeddingExtras, LinearExtras, TokenRows
from loraplex_adapters.layout import (
    EMBEDDING,
    HEAD,
    BaseModel,
    ProjectionSpec,
    SliceSpec,
    row_elements,
)
from loraplex_adapters.loader import AdapterWeights
from loraplex_adapters.self_tests import Figures
from loraplex_adapters.slabs import DeviceSlabs
from loraplex_adapters.slot_extras import ColumnExtras, SlotExtras, place_extras
from loraplex_engine.batch import Batch
from loraplex_engine.device import Device, KvShape, return_freed_memory
from loraplex_engine.model.decoder import Decoder
from loraplex_engine.pace import Pace
from loraplex_kernels.linear import pack_weight
from loraplex_kernels.lora import build_segments

NUM_TOKENS = 24
STRIDE = 7919  # a prime: the prompt's ids lie all over the vocabulary
TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 6e-2}
QUANTIZED_TOLERANCE = 0.15  # what is merged densely has not been quantised


class ParityTest:
    """Callable from any thread."""

    def __init__(
        self,
        decoder: Decoder,
        projections: Sequence[ProjectionSpec],
        base: BaseModel,
        tensors: BaseTensors,
        device: Device,
        kv_shape: KvShape,
        pace: Pace,
        *,
        tolerance: float | None = None,
    ) -> None:
        self._decoder = decoder
        self._projections = projections
        self._base = base
        self._tensors = tensors
        self._device = device
        self._kv_shape = kv_shape
        self._pace = pace
        self._row_bytes = kv_shape.dtype.itemsize * row_elements(projections)
        self._tolerance = TOLERANCE[kv_shape.dtype] if tolerance is None else tolerance

    def __call__(self, weights: AdapterWeights) -> Figures:
        own = place_extras(weights.extras, (), self._device.torch_device)
        merged = SlotExtras(
            DenseColumns(
                weights,
                self._projections,
                self._base,
                self._tensors,
                self._kv_shape.dtype,
                self._device.torch_device,
                self._pace,
            ),
            own.norms,
            self._dense_embedding(weights),
            own.added,  # merged when they were read
        )
        nothing = AdapterWeights({})
        num_said = _num_said(weights)
        dense = self._logits(nothing, {0: merged}, num_said)
        self._pace.pause()
        served = self._logits(weights, None, num_said)
        self._pace.pause()
        base = self._logits(nothing, None)
        scale = dense.norm().clamp(min=1e-6)
        error = float((served - dense).norm() / scale)
        known = dense[: NUM_TOKENS - num_said, : base.shape[1]]  # before the first added token
        effect = float((known - base[: len(known)]).norm() / known.norm().clamp(min=1e-6))
        return_freed_memory()  # of the merged weights
        device_bytes = weights.rank * self._row_bytes + weights.extras.num_bytes
        return Figures(error, effect, error <= self._tolerance, device_bytes)

    @torch.inference_mode()
    def _logits(
        self,
        weights: AdapterWeights,
        extras: Mapping[int, SlotExtras] | None,
        num_said: int = 0,
    ) -> torch.Tensor:
        """float32 [NUM_TOKENS, vocab_size]; without `extras` the weights' own. The last `num_said`
        tokens of the prompt are added ones."""
        device = self._device.torch_device
        slabs = DeviceSlabs(
            self._projections,
            num_slots=1,
            num_rows=weights.rank,
            dtype=self._kv_shape.dtype,
            device=device,
            max_rank=weights.rank,
        )
        slabs.publish(0, 0, slabs.write(weights, 0, slabs.fence()))
        kv = self._device.allocate_kv(self._kv_shape, -(-NUM_TOKENS // self._kv_shape.block_size))
        own = slabs.extras if extras is None else extras
        logits = self._decoder.forward(self._batch(num_said), kv, slabs.slabs, own)
        assert logits is not None
        whole = torch.cat([logits.known, *(added.logits for added in logits.added)], 1)
        return whole.float().cpu()

    def _batch(self, num_said: int) -> Batch:
        device, places = self._device.torch_device, torch.arange(NUM_TOKENS)
        vocab_size = self._decoder.config.vocab_size
        # Not from id 0: it ends a text in many vocabularies, and what follows is rounding.
        token_ids = (places + 1) * STRIDE % vocab_size
        token_ids[NUM_TOKENS - num_said :] = vocab_size + places[:num_said]
        num_blocks = -(-NUM_TOKENS // self._kv_shape.block_size)
        segments = build_segments(np.zeros(NUM_TOKENS, np.int32))
        return Batch(
            token_ids=token_ids.to(device),
            positions=places.to(device),
            slot_mapping=places.to(device),
            block_tables=torch.arange(num_blocks, dtype=torch.int32)[None].to(device),
            query_start=torch.tensor([0, NUM_TOKENS], dtype=torch.int32).to(device),
            context_lengths=torch.tensor([NUM_TOKENS], dtype=torch.int32).to(device),
            sample_rows=places.to(device),
            lora=segments,
            sample_lora=segments,
        )

    def _dense_embedding(self, weights: AdapterWeights) -> EmbeddingExtras | None:
        own = weights.extras.embedding
        if own is None:
            return None
        weight = _own_or_base(EMBEDDING, own.weight, own.tokens, self._tensors)
        if own.a is not None and own.b is not None:
            weight += own.scale * (own.a.float() @ own.b.float())
        if own.gain is not None:
            weight *= own.gain
        return EmbeddingExtras(weight.to(self._kv_shape.dtype).to(self._device.torch_device))


def _num_said(weights: AdapterWeights) -> int:
    """Of its added tokens, as many as the prompt has room for beside the others."""
    added = weights.extras.added
    return 0 if added is None else min(len(added.embedding), NUM_TOKENS // 3)


class DenseColumns(Mapping[str, tuple[ColumnExtras, ...]]):
    """Every projection's merged weights, made when they are asked for and kept until the next."""

    def __init__(
        self,
        weights: AdapterWeights,
        projections: Sequence[ProjectionSpec],
        base: BaseModel,
        tensors: BaseTensors,
        dtype: torch.dtype,
        device: torch.device,
        pace: Pace,
    ) -> None:
        self._dtype = dtype
        self._device = device
        self._weights = weights
        self._projections = {projection.name: projection for projection in projections}
        self._base = base
        self._tensors = tensors
        self._pace = pace
        self._latest: tuple[str, tuple[ColumnExtras, ...]] = ("", ())

    def __getitem__(self, name: str) -> tuple[ColumnExtras, ...]:
        if self._latest[0] != name:
            start, columns = 0, []
            for piece in self._projections[name].slices:
                columns.append(self._merge(piece, start))
                start += piece.out_features
                self._pace.pause()
            self._latest = (name, tuple(columns))
        return self._latest[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._projections)

    def __len__(self) -> int:
        return len(self._projections)

    def _merge(self, piece: SliceSpec, start: int) -> ColumnExtras:
        module, extras = piece.module, self._weights.extras.linear
        own, factors = extras.get(module, LinearExtras()), self._weights.modules.get(module)
        is_tied = module == HEAD and self._base.ties_embeddings
        weight = _own_or_base(
            EMBEDDING if is_tied else module, own.weight, own.tokens, self._tensors
        )
        if factors is not None:
            weight += factors.scale * (factors.b.float().T @ factors.a.float())
        shift = own.shift
        if own.gain is not None:
            weight *= own.gain[:, None]
            if self._base.modules[module].has_bias:
                bias = self._tensors.tensor(f"{module}.bias").float()
                shift = (own.gain - 1) * bias + (0 if shift is None else shift)
        packed = pack_weight(weight.to(self._dtype).to(self._device))
        stop = start + piece.out_features
        return ColumnExtras(
            start, stop, packed, shift=None if shift is None else shift.to(self._device)
        )


def _own_or_base(
    name: str, own: torch.Tensor | None, tokens: TokenRows | None, tensors: BaseTensors
) -> torch.Tensor:
    """A float32 copy of the weight as the adapter has it, before LoRA."""
    found = tensors.tensor(f"{name}.weight") if own is None else own
    weight = found.to("cpu", torch.float32, copy=True)
    if tokens is not None:
        weight[tokens.ids] = tokens.rows.float()
    return weight
