"""How long a step takes: a linear model, fitted while serving.

seconds = a + b·tokens + c·context + d·sequences + q·attention

`context` sums the tokens each sequence attends to, `attention` the token pairs of prefill chunks.
"""

import math
from collections import deque
from dataclasses import dataclass
from operator import mul

# What one unit of each feature is worth, so that all coefficients have the size of seconds.
SCALES = (1.0, 1e-3, 1e-5, 1e-2, 1e-7)
SIZE = len(SCALES)
FORGETTING = 0.999
INERTIA = 1.0  # keeps what no step tells about: the weight of a thousandth of a 30 ms step
WARM_UP = 64  # steps that are learnt from one by one; later ones by sixteens
RESIDUALS = 512
MAX_MARGIN = 1.0  # a machine that stalls now and then is not helped by ever shorter steps


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
    """Least squares of relative errors with forgetting, no part negative; and how far to trust it."""

    def __init__(
        self, base_s: float = 0.006, per_token_s: float = 3e-5, per_context_s: float = 4e-8
    ):
        self._theta = [base_s, per_token_s / SCALES[1], per_context_s / SCALES[2], 0.0, 0.0]
        self._gram = [[0.0] * SIZE for _ in range(SIZE)]  # sums of products of features
        self._moment = [0.0] * SIZE  # sums of features times seconds
        self._ratios: deque[float] = deque(maxlen=RESIDUALS)
        self._observed = 0
        self.margin = 0.05  # p99 of actual/predicted - 1
        self._unscale()

    def _unscale(self) -> None:
        base, token, context, seq, attention = (
            t * s for t, s in zip(self._theta, SCALES, strict=True)
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
            self.margin = min(MAX_MARGIN, max(0.0, ranked[int(0.99 * (len(ranked) - 1))]))
        features = (1.0, load.num_tokens, load.context, load.num_seqs, load.attention)
        # Errors count relative to the step: a 1 ms miss matters in a 5 ms step.
        x = [f * s / seconds for f, s in zip(features, SCALES, strict=True)]
        for i, row in enumerate(self._gram):
            xi = x[i]
            for j in range(SIZE):
                row[j] = row[j] * FORGETTING + xi * x[j]
            self._moment[i] = self._moment[i] * FORGETTING + xi
        if self._observed <= WARM_UP or self._observed % 16 == 0:
            self._solve()
            self._unscale()

    def _solve(self, num_sweeps: int = 12) -> None:
        """Coordinate descent from where it stands; what the steps leave open stays as it was."""
        theta, before = self._theta, tuple(self._theta)
        for _ in range(num_sweeps):
            for i, row in enumerate(self._gram):
                residual = self._moment[i] - sum(map(mul, row, theta))
                pull = residual + INERTIA * (before[i] - theta[i])
                theta[i] = max(0.0, theta[i] + pull / (row[i] + INERTIA))

    @property
    def mean_error(self) -> float:
        """Mean absolute relative error over the last steps."""
        return sum(map(abs, self._ratios)) / len(self._ratios) if self._ratios else 0.0
