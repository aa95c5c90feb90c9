"""How long a step takes: a linear model, fitted while serving.

seconds = a + b·tokens + c·context + d·sequences + q·attention

`context` sums the tokens each sequence attends to, `attention` the token pairs of prefill chunks.
"""

import math
from collections import deque
from dataclasses import dataclass

# What one unit of each feature is worth, so that all coefficients have the size of seconds.
SCALES = (1.0, 1e-3, 1e-5, 1e-2, 1e-7)
FORGETTING = 0.999
MAX_TRACE = 1e4  # beyond it directions that no step excites would forget without learning
RESIDUALS = 512


@dataclass(slots=True)
class StepLoad:
    """What a step computes, as the model sees it."""

    num_tokens: int = 0
    context: int = 0
    num_seqs: int = 0
    attention: float = 0.0

    def add(self, start: int, num_tokens: int) -> None:
        """One more sequence computes positions [start, start + num_tokens)."""
        self.num_tokens += num_tokens
        self.context += start + num_tokens
        self.num_seqs += 1
        if num_tokens > 1:
            self.attention += num_tokens * (start + num_tokens / 2)

    def add_decodes(self, count: int, context: int) -> None:
        self.num_tokens += count
        self.context += context
        self.num_seqs += count


class StepModel:
    """Recursive least squares with forgetting, and the error it must be trusted with."""

    def __init__(
        self, base_s: float = 0.006, per_token_s: float = 3e-5, per_context_s: float = 4e-8
    ):
        self._theta = [base_s, per_token_s / SCALES[1], per_context_s / SCALES[2], 0.0, 0.0]
        self._covariance = [[1e-2 * (i == j) for j in range(5)] for i in range(5)]
        self._ratios: deque[float] = deque(maxlen=RESIDUALS)
        self._observed = 0
        self.margin = 0.05  # p99 of actual/predicted - 1
        self._unscale()

    def _unscale(self) -> None:
        base, token, context, seq, attention = (
            max(0.0, t * s) for t, s in zip(self._theta, SCALES, strict=True)
        )
        self.base_s, self.per_context_s, self.per_seq_s, self.per_pair_s = (
            base,
            context,
            seq,
            attention,
        )
        self.per_token_s = max(token, 1e-9)

    def predict(self, load: StepLoad) -> float:
        return (
            self.base_s
            + self.per_token_s * load.num_tokens
            + self.per_context_s * load.context
            + self.per_seq_s * load.num_seqs
            + self.per_pair_s * load.attention
        )

    def room(self, load: StepLoad, budget_s: float, start: int) -> int:
        """How many tokens a chunk from position `start` may have for the step to end in budget."""
        spare = (
            budget_s - self.predict(load) - self.per_seq_s - self.per_context_s * start
        )  # what one more sequence costs before its first token
        if spare <= 0:
            return 0
        slope = self.per_token_s + self.per_context_s + self.per_pair_s * start
        half = self.per_pair_s / 2
        if half == 0:
            return int(spare / slope)
        return int(2 * spare / (slope + math.sqrt(slope * slope + 4 * half * spare)))

    def prefill_s(self, num_tokens: int) -> float:
        """Time that a prefill of this length adds to the steps that carry it."""
        slope = self.per_token_s + self.per_context_s
        return num_tokens * (slope + self.per_pair_s * num_tokens / 2)

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Learn from a step that took `seconds`."""
        self._ratios.append(seconds / self.predict(load) - 1)
        self._observed += 1
        if self._observed % 64 == 0:
            ranked = sorted(self._ratios)
            self.margin = max(0.0, ranked[int(0.99 * (len(ranked) - 1))])
        features = (1.0, load.num_tokens, load.context, load.num_seqs, load.attention)
        x = [f * s for f, s in zip(features, SCALES, strict=True)]
        p = self._covariance
        px = [sum(a * b for a, b in zip(row, x, strict=True)) for row in p]
        forgetting = FORGETTING if sum(p[i][i] for i in range(5)) < MAX_TRACE else 1.0
        # Errors count relative to the step: a 1 ms miss matters in a 5 ms step.
        weight = seconds * seconds
        denominator = forgetting * weight + sum(a * b for a, b in zip(px, x, strict=True))
        error = seconds - sum(t * v for t, v in zip(self._theta, x, strict=True))
        for i in range(5):
            gain = px[i] / denominator
            self._theta[i] += gain * error
            row = p[i]
            for j in range(5):
                row[j] = (row[j] - gain * px[j]) / forgetting
        self._unscale()

    @property
    def mean_error(self) -> float:
        """Mean absolute relative error over the last steps."""
        return sum(map(abs, self._ratios)) / len(self._ratios) if self._ratios else 0.0
