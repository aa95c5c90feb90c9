"""What the Triton launchers ask for, seen without a GPU: launches are taken down, and nothing runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from loraplex_kernels.activation import _triton as activation
from loraplex_kernels.attention import _decode as decode
from loraplex_kernels.attention import _prefill as prefill
from loraplex_kernels.gpu_variants import DIVISOR, Argument, Variant
from loraplex_kernels.kv_store import _triton as kv_store
from loraplex_kernels.lora import _triton as lora
from loraplex_kernels.norm import _triton as norm
from loraplex_kernels.sampling import _triton as sampling

KERNELS = {
    "shrink_kernel": lora,
    "expand_kernel": lora,
    "decode_kernel": decode,
    "reduce_kernel": decode,
    "prefill_kernel": prefill,
    "rotary_write_kernel": kv_store,
    "norm_kernel": norm,
    "activation_kernel": activation,
    "most_likely_kernel": sampling,
    "keep_kernel": sampling,
    "pick_kernel": sampling,
}
BACKEND = make_backend(GPUTarget("cuda", 90, 32))
DIVISIBLE = "D"  # as Triton writes it
TRITON_CHOOSES = (("num_warps", 4), ("num_stages", 3))


class Launch(NamedTuple):
    """What Triton compiles for: two launches that are equal share a compiled kernel."""

    kernel: str
    arguments: tuple[Argument, ...]
    num_warps: int
    num_stages: int

    @staticmethod
    def of(variant: Variant) -> "Launch":
        """As the table of what is compiled has it."""
        name, arguments = variant.function.__name__, tuple(variant.arguments.values())
        return Launch(name, arguments, variant.num_warps, variant.num_stages)


class RecordedKernel:
    """In the place of a kernel: takes down what Triton itself would look for among its compiled ones."""

    def __init__(self, kernel: Any, launches: set[Launch]) -> None:
        self._name, self._launches = kernel.__name__, launches
        self._bind = create_function_from_signature(kernel.signature, kernel.params, BACKEND)

    def __getitem__(self, grid: tuple[int, ...]) -> "RecordedKernel":
        return self

    def __call__(self, *arguments: Any, **named: Any) -> None:
        _, found, options = self._bind(*arguments, **named)
        known = tuple(
            Argument(kind, value if kind == "constexpr" else {DIVISIBLE: DIVISOR}.get(value))
            for kind, value in found
        )
        warps, stages = (options.get(name, default) for name, default in TRITON_CHOOSES)
        self._launches.add(Launch(self._name, known, warps, stages))


@contextmanager
def recorded_launches() -> Iterator[set[Launch]]:
    """All launches meanwhile; what they would have computed is not there."""
    launches: set[Launch] = set()
    with pytest.MonkeyPatch.context() as patch:
        for name, module in KERNELS.items():
            patch.setattr(module, name, RecordedKernel(getattr(module, name), launches))
        yield launches
