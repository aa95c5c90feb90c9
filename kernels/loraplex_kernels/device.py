"""Which implementation of an op serves a tensor: Numba on the CPU, Triton on CUDA, nothing else."""

import functools
import importlib
from types import ModuleType

from loraplex_kernels.errors import UnsupportedDevice

IMPLEMENTATIONS = {"cpu": "_numba", "cuda": "_triton"}


@functools.cache
def implementation(op: str, device_type: str) -> ModuleType:
    """The module of an op's package for a device type; loaded here, so a CPU never loads Triton."""
    if device_type not in IMPLEMENTATIONS:
        raise UnsupportedDevice(device_type)
    return importlib.import_module(f"{op}.{IMPLEMENTATIONS[device_type]}")
