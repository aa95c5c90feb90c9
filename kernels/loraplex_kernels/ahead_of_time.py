"""Compile every shipped Triton configuration without a GPU and read what the compiler made of it.

python -m loraplex_kernels.ahead_of_time [ARCHITECTURE ...] prints one JSON line a kernel. It runs in
a process without TRITON_INTERPRET, with TRITON_DEFAULT_FP_FUSION=1.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from loraplex_kernels.activation import _triton as activation
from loraplex_kernels.attention import _triton as attention
from loraplex_kernels.gpu_configs import ARCHITECTURES, DECODE, LORA, PREFILL, head_dim_class
from loraplex_kernels.kv_store import _triton as kv_store
from loraplex_kernels.lora import _triton as lora
from loraplex_kernels.norm import _triton as norm

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
LOCAL_MEMORY = re.compile(r"\b(LDL|STL)\b")
TENSOR_CORE = re.compile(r"\b(HMMA|HGMMA|UTC\w*MMA)\b")
WIDE_LOAD = re.compile(r"\b(LDG\.E\S*128|LDGSTS\S*|UTMALDG\S*)\b")


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel as a launcher would ask for it: types by name, constants, warps and stages."""

    name: str
    function: Any
    types: dict[str, str]  # pointers and integers; what is in none of the two is int32
    constants: dict[str, int]
    num_warps: int = 4
    num_stages: int = 3
    has_dot: bool = True
    max_registers: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What the compiler made of a variant on one architecture."""

    name: str
    architecture: int
    registers: int
    stack_bytes: int
    shared_bytes: int
    spills: int
    tensor_core_instructions: int
    wide_loads: int
    has_dot: bool


TABLES = {
    name: "*i32"
    for name in ("row_start", "rank", "permutation", "chunk_slot", "chunk_start", "chunk_length")
}


def lora_variants() -> Iterator[Variant]:
    """Shrink and expand of a fused qkv (8B: 4096 to 4096 + 1024 + 1024) in each rank class."""
    for ranks, c in LORA.items():
        blocks = {"BLOCK_M": c.block_m, "BLOCK_R": ranks, "SPLIT_K": c.split_k, "NUM_SLICES": 3}
        yield Variant(
            f"shrink r{ranks}",
            lora.shrink_kernel,
            {"x": "*bf16", "a": "*bf16", "partial": "*fp32", **TABLES},
            {**blocks, "BLOCK_K": c.block_k},
            c.num_warps,
            c.shrink_stages,
        )
        yield Variant(
            f"expand r{ranks}",
            lora.expand_kernel,
            {"y": "*bf16", "partial": "*fp32", "scale": "*fp32"}
            | {f"b{i}": "*bf16" for i in range(3)}
            | TABLES,
            {**blocks, "BLOCK_N": c.block_n, "W0": 4096, "W1": 1024, "W2": 1024},
            c.num_warps,
            c.expand_stages,
        )


def attention_variants() -> Iterator[Variant]:
    """Decode and prefill for heads of 64 (9 to 3) and 128 (32 to 8), and with window and soft cap."""
    tensors = dict.fromkeys(("q", "k_cache", "v_cache", "out"), "*bf16")
    tables = dict.fromkeys(("tables", "starts", "lengths"), "*i32")
    for phase, table in (("decode", DECODE), ("prefill", PREFILL)):
        for heads, kv_heads, dim, window in ((9, 3, 64, 0), (32, 8, 128, 0), (8, 4, 256, 4096)):
            c = table[head_dim_class(dim)]
            constants = {"HEADS": heads, "KV_HEADS": kv_heads, "DIM": dim, "BLOCK_D": dim}
            constants |= {"GROUP": triton.next_power_of_2(heads // kv_heads), "PAGE": 16}
            constants |= {"BLOCK_M": c.block_m, "BLOCK_N": c.block_n}
            constants |= {"WINDOW": window, "SOFTCAP": int(window > 0)}
            yield Variant(
                f"{phase} d{dim}",
                attention.attention_kernel,
                tensors | tables | {"scale": "fp32", "softcap": "fp32"},
                constants,
                c.num_warps,
                c.num_stages,
            )


def elementwise_variants() -> Iterator[Variant]:
    yield Variant(
        "norm",
        norm.norm_kernel,
        dict.fromkeys(("x", "residual", "weight", "out"), "*bf16")
        | {"epsilon": "fp32", "offset": "fp32"},
        {"HAS_RESIDUAL": 1, "BLOCK": 4096},
        has_dot=False,
    )
    for name, is_gelu in (("silu", 0), ("gelu", 1)):
        yield Variant(
            name,
            activation.activation_kernel,
            {"gate_up": "*bf16", "out": "*bf16"},
            {"GELU": is_gelu, "BLOCK": activation.BLOCK},
            has_dot=False,
        )
    yield Variant(
        "rotary",
        kv_store.rotary_write_kernel,
        dict.fromkeys(("q", "k", "v", "k_cache", "v_cache"), "*bf16")
        | {"cos": "*fp32", "sin": "*fp32", "positions": "*i64", "slots": "*i64"},
        {"GROUP": 4, "KV_HEADS": 8, "PAGE": 16, "DIM": 128, "HALF": 64}
        | {"BLOCK_HALF": 64, "BLOCK_D": 128},
        num_warps=1,
        has_dot=False,
    )


def variants() -> list[Variant]:
    """Everything that ships."""
    return [*lora_variants(), *attention_variants(), *elementwise_variants()]


def inspect(variant: Variant, architecture: int) -> Report:
    """Compile a variant for an architecture and read registers, spills and instructions."""
    names = variant.function.arg_names
    signature = {
        n: "constexpr" if n in variant.constants else variant.types.get(n, "i32") for n in names
    }
    # What a launch would find: aligned pointers, strides and widths that 16 divides
    aligned = [
        i
        for i, n in enumerate(names)
        if signature[n].startswith("*") or n.endswith(("stride", "features", "width"))
    ]
    source = ASTSource(
        variant.function,
        signature,
        constexprs=variant.constants,
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
    )
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", architecture, 32),
        options={
            "num_warps": variant.num_warps,
            "num_stages": variant.num_stages,
            "maxnreg": variant.max_registers,
        },
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = run_tool("cuobjdump", "--dump-resource-usage", file.name)
        code = run_tool("nvdisasm", "-c", file.name)
    return Report(
        name=variant.name,
        architecture=architecture,
        registers=number_after("REG", usage),
        stack_bytes=number_after("STACK", usage),
        shared_bytes=compiled.metadata.shared,
        spills=len(LOCAL_MEMORY.findall(code)),
        tensor_core_instructions=len(TENSOR_CORE.findall(code)),
        wide_loads=len(WIDE_LOAD.findall(code)),
        has_dot=variant.has_dot,
    )


def run_tool(name: str, *arguments: str) -> str:
    """Output of one of the tools that come with Triton."""
    return subprocess.run(
        [TOOLS / name, *arguments], check=True, capture_output=True, text=True
    ).stdout


def number_after(word: str, usage: str) -> int:
    found = re.search(rf"\b{word}:(\d+)", usage)
    assert found is not None, f"no {word} in {usage!r}"
    return int(found[1])


def main(architectures: list[int]) -> None:
    for variant in variants():
        for architecture in architectures:
            sys.stdout.write(json.dumps(asdict(inspect(variant, architecture))) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main([int(a) for a in sys.argv[1:]] or list(ARCHITECTURES))
