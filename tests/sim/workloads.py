"""Requests as the public traces have them: lengths, arrivals, tenants, adapters and shared prefixes.

Fits are lognormal (median, sigma) of the published statistics: Azure 2023 conversation and code,
BurstGPT, Mooncake conversation and tool&agent, ShareGPT.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from loraplex_engine.messages import SamplingParams, Tier
from loraplex_engine.sequence import Sequence

MAX_TOKENS = 2048


class Lengths(NamedTuple):
    """Prompt and output lengths of a trace; outputs may be a mixture of two lognormals."""

    prompt: tuple[float, float]  # median, sigma
    output: tuple[tuple[float, float], ...]
    max_prompt: int
    reuse: float = 0.0  # share of the prompt's tokens that earlier requests of the tenant had


TRACES = {
    "azure-conversation": Lengths((1020, 1.0), ((40, 0.8), (300, 0.5)), 14_050),
    "azure-code": Lengths((1469, 0.8), ((13, 0.9),), 7_437),
    "burstgpt": Lengths((327, 0.87), ((200, 0.78),), 8_192),
    "mooncake-conversation": Lengths((6909, 1.07), ((240, 0.85),), 32_000, 0.37),
    "mooncake-agent": Lengths((6346, 0.78), ((130, 0.82),), 32_000, 0.59),
    "sharegpt": Lengths((60, 1.4), ((220, 0.93),), 1_024),
    # prompt 1 000 / p90 4 000, output 130 / p90 420: what live traffic meets endless batch work with
    "co-serving": Lengths(
        (1000, math.log(4) / 1.2816), ((130, math.log(420 / 130) / 1.2816),), 16_000
    ),
}


BATCH = Lengths((800, 0.3), ((300, 0.3),), 8_192)


class Arrival(NamedTuple):
    """A request before it is sent; `num_output` is what the model will say, unknown to the policy."""

    at_s: float
    tenant: str
    tier: Tier
    num_prompt: int
    num_output: int
    adapter: str | None = None
    num_shared: int = 0  # leading tokens common to the tenant


def gamma_gaps(rng: random.Random, rate: float, cv: float) -> Callable[[], float]:
    """Gaps with this mean rate and coefficient of variation; cv 1 is Poisson."""
    shape = 1 / (cv * cv)
    return lambda: rng.gammavariate(shape, 1 / (rate * shape))


def arrival_times(
    rng: random.Random, rate: float, cv: float, on_off: tuple[float, float] | None
) -> Iterator[float]:
    """Endless times. ON/OFF: (period, factor): half of each period at `factor` times the other half."""
    gap, now = gamma_gaps(rng, 1.0, cv), 0.0
    while True:
        local = rate
        if on_off is not None:
            period, factor = on_off
            low = 2 * rate / (1 + factor)
            local = low * factor if (now % period) < period / 2 else low
        now += gap() / local
        yield now


@dataclass(frozen=True)
class Tenant:
    """One source of live requests."""

    name: str
    tier: Tier
    rate: float  # requests a second
    trace: str = "co-serving"
    cv: float = 2.5
    on_off: tuple[float, float] | None = None
    weight: float = 1.0
    adapters: tuple[str, ...] = ()
    adapter_skew: float = 1.0  # Zipf exponent

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        rng = random.Random(f"{self.name}/{seed}")
        lengths = TRACES[self.trace]
        shares = [1 / (i + 1) ** self.adapter_skew for i in range(len(self.adapters))]
        for at_s in arrival_times(rng, self.rate, self.cv, self.on_off):
            prompt = draw(rng, lengths.prompt, lengths.max_prompt)
            output = draw(rng, rng.choice(lengths.output), MAX_TOKENS)
            adapter = rng.choices(self.adapters, shares)[0] if self.adapters else None
            shared = int(prompt * lengths.reuse)
            yield Arrival(at_s, self.name, self.tier, prompt, output, adapter, shared)


def draw(rng: random.Random, fit: tuple[float, float], largest: int) -> int:
    median, sigma = fit
    return max(1, min(largest, round(rng.lognormvariate(math.log(median), sigma))))


@dataclass(frozen=True)
class Backlog:
    """Work without end: as soon as fewer than `depth` requests wait, more are there."""

    tenant: str = "batch"
    tier: Tier = "batch"
    weight: float = 1.0
    lengths: Lengths = BATCH
    depth: int = 32

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        rng, lengths = random.Random(f"{self.tenant}/{seed}"), self.lengths
        while True:
            prompt = draw(rng, lengths.prompt, lengths.max_prompt)
            output = draw(rng, lengths.output[0], MAX_TOKENS)
            yield Arrival(0.0, self.tenant, self.tier, prompt, output)


@dataclass(frozen=True)
class Script:
    """A tenant whose requests are written down."""

    name: str
    requests: tuple[Arrival, ...]
    weight: float = 1.0

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        return iter(self.requests)


@dataclass(frozen=True)
class Workload:
    tenants: tuple[Tenant | Script, ...] = ()
    backlogs: tuple[Backlog, ...] = ()
    max_tokens: int = MAX_TOKENS
    prefixes: bool = field(default=False)  # whether token ids matter


def to_sequence(arrival: Arrival, number: int, now: float, workload: Workload) -> Sequence:
    """The request as the engine gets it."""
    own = arrival.num_prompt - arrival.num_shared
    if workload.prefixes:
        ids = (*range(arrival.num_shared), *range(-number * 100_000, own - number * 100_000))
    else:
        ids = (0,) * arrival.num_prompt
    return Sequence(
        request_id=f"r{number}",
        prompt_ids=ids,
        sampling=SamplingParams(max_tokens=max(workload.max_tokens, arrival.num_output)),
        tenant=arrival.tenant,
        arrival_s=now,
        tier=arrival.tier,
        adapter=arrival.adapter,
        cache_root=arrival.tenant.encode(),
    )


def co_serving(
    rate: float, *, live: bool = True, batch: bool = True, trace: str = "co-serving"
) -> Workload:
    """Two interactive and two standard tenants at `rate` requests a second, beside endless batch work."""
    tiers: tuple[tuple[str, Tier], ...] = (
        ("ada", "interactive"),
        ("bob", "interactive"),
        ("cyd", "standard"),
        ("dee", "standard"),
    )
    tenants = tuple(Tenant(name, tier, rate / 4, trace) for name, tier in tiers) if live else ()
    return Workload(tenants, (Backlog(),) if batch else (), prefixes=TRACES[trace].reuse > 0)
