"""Whether stored numbers are finite, read from their bits."""

from typing import Any

import numpy as np
import numpy.typing as npt

EXPONENTS: dict[str, tuple[type[np.unsignedinteger[Any]], int]] = {
    "BF16": (np.uint16, 0x7F80),
    "F16": (np.uint16, 0x7C00),
    "F32": (np.uint32, 0x7F800000),
}
AT_ONCE = 1 << 16  # elements: what is made of them stays in the cache


def is_finite(raw: "bytes | npt.NDArray[np.uint8]", dtype: str) -> bool:
    """No element of a safetensors dtype has all bits of its exponent set."""
    kind, exponent = EXPONENTS[dtype]
    words = np.frombuffer(raw, kind)
    pieces = (words[at : at + AT_ONCE] for at in range(0, len(words), AT_ONCE))
    return all(np.bitwise_and(piece, kind(exponent)).max() != exponent for piece in pieces)
