"""Sampling: the most likely token; cutting a distribution; the inverse of its distribution function.

A row's result does not depend on the other rows. On the CPU torch serves; on a GPU one program takes a row,
and nothing is sorted: a limit is found by bisecting over the bits of the numbers, the same as by sorting.
"""

from types import ModuleType

import torch

from loraplex_kernels.device import implementation
from loraplex_kernels.sampling import reference

__all__ = ["keep_top_k", "keep_top_p", "most_likely", "pick"]


def most_likely(logits: torch.Tensor) -> torch.Tensor:
    """The token of the largest of each row, the first of equals; logits: [num_rows, vocab_size]."""
    found: torch.Tensor = _serving(logits).most_likely(logits)
    return found


def keep_top_k(logits: torch.Tensor, top_k: torch.Tensor) -> None:
    """Make -inf, in place, of what is below the top_k-th largest of its row; equals of it are all kept.

    logits: float32 [num_rows, vocab_size]; top_k: int64 [num_rows], 0: keep the row.
    """
    assert logits.dtype == torch.float32
    assert top_k.dtype == torch.int64
    _serving(logits).keep_top_k(logits, top_k)


def keep_top_p(probabilities: torch.Tensor, top_p: torch.Tensor) -> None:
    """Make 0, in place, of what is below the least of the fewest likely tokens that reach top_p together.

    probabilities: float32 [num_rows, vocab_size], of sum 1; equals of the least are all kept.
    top_p: float64 [num_rows], above 0; from 1 on: keep the row. Sums are taken in float64.
    """
    assert probabilities.dtype == torch.float32
    assert top_p.dtype == torch.float64
    _serving(probabilities).keep_top_p(probabilities, top_p)


def pick(probabilities: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The first token of each row up to which its weights exceed `uniform` of their sum.

    probabilities: float32 [num_rows, vocab_size], not negative, of any sum; uniform: float64 [num_rows] in
    [0, 1). Sums are taken in float64 and in a fixed order.
    """
    assert probabilities.dtype == torch.float32
    assert uniform.dtype == torch.float64
    found: torch.Tensor = _serving(probabilities).pick(probabilities, uniform)
    return found


def _serving(rows: torch.Tensor) -> ModuleType:
    if rows.device.type == "cpu":
        return reference
    assert rows.stride(1) == 1
    return implementation(__name__, rows.device.type)
