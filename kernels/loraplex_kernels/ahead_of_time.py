"""Compile every shipped Triton configuration without a GPU and read what the compiler made of it.

python -m loraplex_kernels.ahead_of_time [ARCHITECTURE ...] prints one JSON line a kernel. It runs in
a process without TRITON_INTERPRET, with TRITON_DEFAULT_FP_FUSION=1.
"""

import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from loraplex_kernels.addresses import narrow_products
from loraplex_kernels.gpu_configs import ARCHITECTURES
from loraplex_kernels.gpu_variants import Variant, variants
from loraplex_kernels.occupancy import occupancy

NUM_THREADS = (
    2  # half of the time is the assembler's and the tools', which are processes of their own
)
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
LOCAL_MEMORY = re.compile(r"\b(LDL|STL)\b")
TENSOR_CORE = re.compile(r"\b(HMMA|HGMMA|UTC\w*MMA)\b")
WIDE_LOAD = re.compile(r"\b(LDG\.E\S*128|LDGSTS\S*|UTMALDG\S*)\b")


@dataclass(frozen=True, slots=True)
class Report:
    """What the compiler made of a variant on one architecture."""

    name: str
    architecture: int
    triton: str
    num_warps: int
    registers: int
    stack_bytes: int
    shared_bytes: int
    tensor_memory_columns: int
    occupancy: float  # share of the warps that a multiprocessor could hold
    intensity: float  # operations a byte, as asked for
    spills: int
    tensor_core_instructions: int
    wide_loads: int
    has_dot: bool
    narrow_products: int  # of 32 bits, in addresses


def inspect(variant: Variant, architecture: int) -> Report:
    """Compile a variant for an architecture and read registers, spills and instructions."""
    arguments = variant.arguments
    source = ASTSource(
        variant.function,
        {name: argument.kind for name, argument in arguments.items()},
        constexprs=variant.constants,
        attrs={
            (i,): [["tt.divisibility", argument.known]]
            for i, argument in enumerate(arguments.values())
            if argument.kind != "constexpr" and argument.known is not None
        },
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
    registers, shared = number_after("REG", usage), compiled.metadata.shared
    columns = compiled.metadata.tmem_size or 0
    return Report(
        name=variant.name,
        architecture=architecture,
        triton=triton.__version__,
        num_warps=variant.num_warps,
        registers=registers,
        stack_bytes=number_after("STACK", usage),
        shared_bytes=shared,
        tensor_memory_columns=columns,
        occupancy=occupancy(architecture, variant.num_warps, registers, shared, columns).share,
        intensity=round(variant.work.intensity, 1),
        spills=len(LOCAL_MEMORY.findall(code)),
        tensor_core_instructions=len(TENSOR_CORE.findall(code)),
        wide_loads=len(WIDE_LOAD.findall(code)),
        has_dot=variant.has_dot,
        narrow_products=narrow_products(compiled.asm["ttir"]),
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
    work = [(variant, each) for each in architectures for variant in variants(each)]
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        for report in pool.map(lambda item: inspect(*item), work):
            sys.stdout.write(json.dumps(asdict(report)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main([int(a) for a in sys.argv[1:]] or list(ARCHITECTURES))
