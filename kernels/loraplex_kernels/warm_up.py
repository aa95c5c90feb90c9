"""Compile everything before the first request: no compilation happens inside a step."""

from loraplex_kernels._numba import KERNELS
from loraplex_kernels.device import has_amx, implementation

OPS = ("lora", "attention", "kv_store", "norm", "activation")
AMX_OPS = ("linear", "attention", "lora")


def warm_up(device_type: str = "cpu") -> None:
    """Load or compile the CPU kernels of all ops; later calls are free. CUDA compiles at first launches."""
    for op in OPS:
        implementation(f"{__package__}.{op}", device_type)
    if device_type == "cpu":
        implementation(f"{__package__}.linear", "cpu")  # of int8 weights
        for op in AMX_OPS if has_amx() else ():
            implementation(f"{__package__}.{op}", "amx")
        for kernel in KERNELS.values():
            kernel.compile()


def signature_counts() -> dict[str, int]:
    """Compiled versions of each CPU kernel; a test asserts that requests do not change it."""
    return {name: kernel.num_signatures for name, kernel in KERNELS.items()}
