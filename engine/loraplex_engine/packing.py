"""Several tables in one buffer, so that a step's go to the device in one copy."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

ALIGNMENT = 16  # bytes: a kernel that is handed a table needs no variant for its address

TORCH_DTYPES = {np.dtype(np.int32): torch.int32, np.dtype(np.int64): torch.int64}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table lies in the buffer."""

    start: int
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @property
    def stop(self) -> int:
        return self.start + int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Layout:
    """Tables one after the other."""

    places: tuple[Place, ...]
    num_bytes: int

    @staticmethod
    def of(tables: Iterable[npt.NDArray[np.generic]]) -> "Layout":
        """For tables of these shapes and types, int32 or int64."""
        places, end = [], 0
        for table in tables:
            places.append(Place(end, table.shape, table.dtype))
            end = -(-places[-1].stop // ALIGNMENT) * ALIGNMENT
        return Layout(tuple(places), end)

    def tensors(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """Views of a buffer of num_bytes bytes, which share its memory."""
        return [
            buffer[p.start : p.stop].view(TORCH_DTYPES[p.dtype]).view(p.shape) for p in self.places
        ]

    def arrays(self, buffer: torch.Tensor) -> list[npt.NDArray[np.generic]]:
        """The same views for numpy, of a buffer in host memory."""
        return [tensor.numpy() for tensor in self.tensors(buffer)]
