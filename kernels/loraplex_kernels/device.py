"""Which implementation of an op serves a tensor: Numba on the CPU, Triton on CUDA, nothing else.

Some ops have a second one for CPUs with AMX tiles.
"""

import functools
import importlib
from types import ModuleType

import torch

from loraplex_kernels.errors import UnsupportedDevice

IMPLEMENTATIONS = {"cpu": "_numba", "amx": "_amx", "cuda": "_triton"}


@functools.cache
def implementation(op: str, device_type: str) -> ModuleType:
    """The module of an op's package for a device type; loaded here, so a CPU never loads Triton."""
    if device_type not in IMPLEMENTATIONS:
        raise UnsupportedDevice(device_type)
    return importlib.import_module(f"{op}.{IMPLEMENTATIONS[device_type]}")


@functools.cache
def has_amx() -> bool:
    """Whether this process may use AMX tiles; asks the system for them the first time."""
    return bool(torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx())
