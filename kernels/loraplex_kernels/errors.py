"""What can go wrong in the kernels layer.

KernelError
├── UnsupportedDevice
└── UnsupportedDtype
"""

import torch


class KernelError(Exception):
    """The root of this layer's errors."""


class UnsupportedDevice(KernelError):
    """No kernel serves this kind of device."""

    def __init__(self, device_type: str) -> None:
        super().__init__(f"no kernels for the device {device_type!r}; there are cpu and cuda")
        self.device_type = device_type


class UnsupportedDtype(KernelError):
    """The kernels of this device do not take this element type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(f"the CPU kernels take bfloat16 and float32, not {dtype}")
        self.dtype = dtype
