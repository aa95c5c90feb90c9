"""Everything the Triton launchers would ask for on an architecture, as the tables have it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import triton

from loraplex_kernels.activation import _triton as activation
from loraplex_kernels.attention import _decode as decode
from loraplex_kernels.attention import _prefill as prefill
from loraplex_kernels.gpu_configs import (
    DECODE,
    LEAST_SPLIT,
    LORA,
    PREFILL,
    AttentionConfig,
    AttentionKey,
)
from loraplex_kernels.kv_store import _triton as kv_store
from loraplex_kernels.lora import _triton as lora
from loraplex_kernels.norm import _triton as norm
from loraplex_kernels.sampling import _triton as sampling
from loraplex_kernels.work import (
    LAYER_8B,
    Work,
    activation_work,
    attention_work,
    example_runs,
    expand_work,
    keep_work,
    most_likely_work,
    norm_work,
    pick_work,
    rotary_work,
    shrink_work,
)

DIVISOR = 16  # of addresses in bytes, of strides and of widths: Triton compiles with it or without


class Argument(NamedTuple):
    """What Triton compiles for: a type, and what is known of the value."""

    kind: str
    known: int | None  # a constant, else what divides the value


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel as a launcher would ask for it: types by name, constants, warps and stages."""

    name: str
    function: Any
    types: dict[str, str]  # of pointers and numbers; what is neither here nor constant is int32
    constants: dict[str, int]
    work: Work  # of one launch at the sizes that the table in the documents names
    num_warps: int = 4
    num_stages: int = 3
    has_dot: bool = True
    max_registers: int | None = None

    @property
    def arguments(self) -> dict[str, Argument]:
        """By parameter, as a launch for a model of today has them."""
        arguments = {}
        for parameter in self.function.params:
            name = parameter.name
            kind = "constexpr" if name in self.constants else self.types.get(name, "i32")
            is_known = kind[0] in "*i" and not parameter.do_not_specialize
            arguments[name] = Argument(
                kind, self.constants.get(name, DIVISOR if is_known else None)
            )
        return arguments


CONTEXT = 1024
STREAMS = 64
VOCABULARY = 128256  # of Llama-3
HEADS = ((9, 3, 64, 0), (32, 8, 128, 0), (8, 4, 256, 4096))  # heads, kv heads, dimensions, window
TABLES = {
    name: "*i32"
    for name in ("row_start", "rank", "permutation", "chunk_slot", "chunk_start", "chunk_length")
}
CACHES = dict.fromkeys(("q", "k_cache", "v_cache"), "*bf16")


def lora_variants(architecture: int) -> Iterator[Variant]:
    """Shrink and expand in each rank class and token bucket: the same kernels for every projection."""
    in_features, widths = LAYER_8B["qkv"]
    for key, c in LORA.items():
        if key.architecture != architecture:
            continue
        ranks = key.rank_class
        runs = example_runs(key.tokens, ranks)
        blocks = {"BLOCK_M": c.block_m, "BLOCK_R": ranks, "SPLIT_K": c.split_k}
        yield Variant(
            f"shrink r{ranks} {key.tokens}",
            lora.shrink_kernel,
            {"x": "*bf16", "a": "*bf16", "partial": "*fp32", **TABLES},
            {**blocks, "BLOCK_K": c.block_k},
            shrink_work(runs, in_features, len(widths)),
            c.num_warps,
            c.shrink_stages,
        )
        yield Variant(
            f"expand r{ranks} {key.tokens}",
            lora.expand_kernel,
            {"y": "*bf16", "partial": "*fp32", "scale": "*fp32"}
            | {f"b{i}": "*bf16" for i in range(3)}
            | TABLES,
            {**blocks, "BLOCK_N": c.block_n},
            expand_work(runs, widths),
            c.num_warps,
            c.expand_stages,
        )


def attention_variants(architecture: int) -> Iterator[Variant]:
    """Decode, its reduction and prefill for three shapes of heads, one with window and soft cap."""
    for heads, kv_heads, dim, window in HEADS:
        shape = {"HEADS": heads, "KV_HEADS": kv_heads, "DIM": dim, "BLOCK_D": dim, "PAGE": 16}
        shape |= {"WINDOW": window, "SOFTCAP": int(window > 0)}
        types = CACHES | {"scale": "fp32", "softcap": "fp32", "lengths": "*i32", "tables": "*i32"}
        key = AttentionKey(architecture, dim)
        sizes = (heads, kv_heads, dim, window)
        yield from _decode_variants(dim, DECODE[key], shape, types, sizes)
        c = PREFILL[key]
        yield Variant(
            f"prefill d{dim}",
            prefill.prefill_kernel,
            types | {"out": "*bf16", "starts": "*i32"},
            shape
            | {"GROUP": triton.next_power_of_2(heads // kv_heads)}
            | {"BLOCK_M": c.block_m, "BLOCK_N": c.block_n},
            attention_work([(CONTEXT, CONTEXT)], *sizes),
            c.num_warps,
            c.num_stages,
        )


def _decode_variants(
    dim: int,
    c: AttentionConfig,
    shape: dict[str, int],
    types: dict[str, str],
    sizes: tuple[int, int, int, int],
) -> Iterator[Variant]:
    splits = {"NUM_SPLITS": c.num_splits, "LEAST_KEYS": LEAST_SPLIT, "BLOCK_N": c.block_n}
    parts = {"partial": "*fp32", "sums": "*fp32"}
    yield Variant(
        f"decode d{dim}",
        decode.decode_kernel,
        types | parts,
        shape | splits | {"BLOCK_M": c.block_m},
        attention_work([(1, CONTEXT)] * STREAMS, *sizes),
        c.num_warps,
        c.num_stages,
    )
    elements = STREAMS * sizes[0] * dim * (CONTEXT // LEAST_SPLIT)
    yield Variant(
        f"decode sum d{dim}",
        decode.reduce_kernel,
        {"out": "*bf16", "lengths": "*i32", **parts},
        {n: shape[n] for n in ("HEADS", "DIM", "BLOCK_D", "WINDOW")} | splits,
        Work(2 * elements, 4 * elements),
        decode.REDUCE_WARPS,
        has_dot=False,
    )


def elementwise_variants() -> Iterator[Variant]:
    for name, rows, width, has_residual in (
        ("norm", STREAMS, 4096, True),
        ("norm without residual", STREAMS, 4096, False),
        ("norm of heads", STREAMS * 32, 128, False),
    ):
        yield Variant(
            name,
            norm.norm_kernel,
            dict.fromkeys(("x", "residual", "weight", "out"), "*bf16")
            | {"epsilon": "fp32", "offset": "fp32"},
            {"HAS_RESIDUAL": int(has_residual), "BLOCK": width},
            norm_work(rows, width, has_residual=has_residual),
            has_dot=False,
        )
    for name, is_gelu in (("silu", 0), ("gelu", 1)):
        yield Variant(
            name,
            activation.activation_kernel,
            {"gate_up": "*bf16", "out": "*bf16"},
            {"GELU": is_gelu, "BLOCK": activation.BLOCK},
            activation_work(STREAMS, 14336),
            has_dot=False,
        )
    yield Variant(
        "rotary",
        kv_store.rotary_write_kernel,
        CACHES
        | {"k": "*bf16", "v": "*bf16", "cos": "*fp32", "sin": "*fp32"}
        | {"positions": "*i64", "slots": "*i64"},
        {"GROUP": 4, "KV_HEADS": 8, "PAGE": 16, "DIM": 128, "HALF": 64}
        | {"BLOCK_HALF": 64, "BLOCK_D": 128},
        rotary_work(STREAMS, 32, 8, 128),
        num_warps=1,
        has_dot=False,
    )


def sampling_variants() -> Iterator[Variant]:
    for name, kind, item_bytes in (
        ("most likely", "*bf16", 2),
        ("most likely, penalised", "*fp32", 4),
    ):
        yield Variant(
            name,
            sampling.most_likely_kernel,
            {"logits": kind, "out": "*i64"},
            {"BLOCK": sampling.BLOCK},
            most_likely_work(STREAMS, VOCABULARY, item_bytes),
            has_dot=False,
        )
    for name, by_weight in (("top k", 0), ("top p", 1)):
        yield Variant(
            name,
            sampling.keep_kernel,
            {"values": "*fp32", "targets": "*fp64"},
            {"BY_WEIGHT": by_weight, "BLOCK": sampling.BLOCK},
            keep_work(STREAMS, VOCABULARY),
            has_dot=False,
        )
    yield Variant(
        "pick",
        sampling.pick_kernel,
        {"probabilities": "*fp32", "uniform": "*fp64", "out": "*i64"},
        {"BLOCK": sampling.BLOCK},
        pick_work(STREAMS, VOCABULARY),
        has_dot=False,
    )


def variants(architecture: int) -> list[Variant]:
    """Everything that ships for an architecture."""
    return [
        *lora_variants(architecture),
        *attention_variants(architecture),
        *elementwise_variants(),
        *sampling_variants(),
    ]
