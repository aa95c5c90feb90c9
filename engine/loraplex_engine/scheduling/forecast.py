"""How long outputs get, and how much KV the running requests will need at their common peak."""

from collections.abc import Iterable

from loraplex_engine.messages import Tier

NUM_BUCKETS = 24  # of output lengths [2^i, 2^(i+1))
HALF_LIFE = 500  # finishes after which an observation counts half
PSEUDO_COUNT = 20.0  # finishes that a narrow histogram needs to outweigh the wider one
DECAY = 0.5 ** (1 / HALF_LIFE)
BLEND_EVERY = 16  # finishes after which blended histograms are made anew
PRIOR_TOKENS = 256  # what is assumed before anything finished


class Histogram:
    """Output lengths in powers of two, the recent ones counting most."""

    def __init__(self) -> None:
        self._counts = [0.0] * NUM_BUCKETS
        self._unit = 1.0  # grows instead of all counts shrinking

    def add(self, num_tokens: int) -> None:
        self._unit /= DECAY
        self._counts[min(max(num_tokens, 1).bit_length() - 1, NUM_BUCKETS - 1)] += self._unit
        if self._unit > 1e12:
            self._counts = [count / self._unit for count in self._counts]
            self._unit = 1.0

    @property
    def counts(self) -> list[float]:
        return [count / self._unit for count in self._counts]


class LengthModel:
    """Quantiles of output length given what was generated, from the narrowest history there is."""

    def __init__(self) -> None:
        self._histograms: dict[tuple[str | None, ...], Histogram] = {}
        self._blends: dict[tuple[str | None, ...], list[float]] = {}
        self._observed = 0

    def observe(self, tenant: str, adapter: str | None, tier: Tier, num_tokens: int) -> None:
        for key in self._keys(tenant, adapter, tier):
            self._histograms.setdefault(key, Histogram()).add(num_tokens)
        self._observed += 1
        if self._observed % BLEND_EVERY == 0:
            self._blends.clear()

    def quantile(
        self, q: float, tenant: str, adapter: str | None, tier: Tier, generated: int = 0
    ) -> int:
        """The q-quantile of the total output length of a request that has generated this much."""
        shares = self._blend(self._keys(tenant, adapter, tier))
        return max(generated + 1, _conditional_quantile(shares, q, generated))

    def _blend(self, keys: tuple[tuple[str | None, ...], ...]) -> list[float]:
        shares = self._blends.get(keys[-1])
        if shares is not None:
            return shares
        shares = [0.0] * NUM_BUCKETS
        shares[PRIOR_TOKENS.bit_length() - 1] = 1.0
        for key in keys:
            histogram = self._histograms.get(key)
            if histogram is not None:
                counts = histogram.counts
                total = sum(counts) + PSEUDO_COUNT
                pairs = zip(counts, shares, strict=True)
                shares = [(count + PSEUDO_COUNT * share) / total for count, share in pairs]
        self._blends[keys[-1]] = shares
        return shares

    @staticmethod
    def _keys(tenant: str, adapter: str | None, tier: Tier) -> tuple[tuple[str | None, ...], ...]:
        """Widest first: each histogram is shrunk towards the one before it."""
        return ((), (tier,), (tier, tenant), (tier, tenant, adapter))


def _conditional_quantile(shares: list[float], q: float, generated: int) -> int:
    """Quantile of L given L > generated, lengths spread evenly within each bucket."""
    first = (generated + 1).bit_length() - 1  # the bucket that the next token falls into
    cut = shares[first] * ((2 << first) - generated - 1) / (1 << first)
    wanted = q * (cut + sum(shares[first + 1 :]))
    low, high, share = generated + 1, 2 << first, cut
    while wanted > share and first + 1 < NUM_BUCKETS:
        wanted -= share
        first += 1
        low, high, share = 1 << first, 2 << first, shares[first]
    return low + int((high - low) * wanted / share) if share else low


def peak_tokens(rows: Iterable[tuple[int, int]]) -> int:
    """Most tokens held at once by sequences that each hold `held` and will add `left` more.

    All grow in step; the peak is at the end of one of them, when the shorter ones are gone.
    """
    held_so_far = peak = 0
    for count, (left, held) in enumerate(sorted(rows, reverse=True), start=1):
        held_so_far += held
        need = left * count + held_so_far
        if need > peak:
            peak = need
    return peak
