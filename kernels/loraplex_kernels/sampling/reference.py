"""The definition of sampling's steps; torch's own operations, which serve the CPU too."""

import torch

NUM_LIKELY = 256  # top-p looks at this many tokens before it sorts the whole vocabulary


def most_likely(logits: torch.Tensor) -> torch.Tensor:
    """As loraplex_kernels.sampling.most_likely; torch's argmax of bfloat16 takes four times as long."""
    is_largest = logits == logits.amax(-1, keepdim=True)
    return torch.from_numpy(is_largest.numpy().argmax(-1))


def keep_top_k(logits: torch.Tensor, top_k: torch.Tensor) -> None:
    """As loraplex_kernels.sampling.keep_top_k."""
    rows = ((top_k > 0) & (top_k < logits.shape[1])).nonzero()[:, 0]
    if len(rows):
        chosen, k = logits[rows], top_k[rows]
        limit = chosen.topk(int(k.max())).values.gather(1, k[:, None] - 1)
        logits[rows] = chosen.masked_fill(chosen < limit, float("-inf"))


def keep_top_p(probabilities: torch.Tensor, top_p: torch.Tensor) -> None:
    """As loraplex_kernels.sampling.keep_top_p."""
    rows = (top_p < 1).nonzero()[:, 0]
    if len(rows):
        chosen, share = probabilities[rows], top_p[rows, None]
        likely = chosen.topk(min(NUM_LIKELY, chosen.shape[1])).values
        rest = likely.double().sum(-1) < share[:, 0]
        limit = _nucleus_limit(likely, share)
        if bool(rest.any()):
            ordered = chosen[rest].sort(-1, descending=True).values
            limit[rest] = _nucleus_limit(ordered, share[rest])
        probabilities[rows] = chosen.masked_fill(chosen < limit, 0.0)


def _nucleus_limit(ordered: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The least probability in the smallest set that reaches top_p; ordered: descending."""
    before = ordered.double().cumsum(-1) - ordered.double()
    count = (before < top_p).sum(-1, keepdim=True).clamp(min=1)
    return ordered.gather(1, count - 1)


def pick(probabilities: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """As loraplex_kernels.sampling.pick."""
    cumulative = probabilities.double().cumsum(-1)
    target = uniform[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True)[:, 0]
