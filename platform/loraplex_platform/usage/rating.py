"""Rating: a pure function from tokens and a tariff to lines that share no token.

It is linear: what it makes of a sum of requests is the sum of what it makes of each, as long as they
are of one SKU and one tariff. So roll-ups of tokens can be rated like events, to the pico-dollar.
"""

from typing import NamedTuple, Protocol

from loraplex_platform.usage.models import UsageQuarter
from loraplex_platform.usage.prices import BASE, KINDS, Sku, Tariff, TokenKind


class Rated(Protocol):
    """What rating reads of a usage event; facts and rows have it."""

    @property
    def base_model(self) -> str: ...
    @property
    def adapter_version(self) -> str | None: ...
    @property
    def tier(self) -> str: ...
    @property
    def outcome(self) -> str: ...
    @property
    def delivered(self) -> bool: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def completion_tokens(self) -> int: ...


class Tokens(NamedTuple):
    """Tokens that are paid for, by kind."""

    uncached_prompt: int = 0
    cached_prompt: int = 0
    completion: int = 0

    def of(self, kind: TokenKind) -> int:
        count: int = getattr(self, kind)
        return count


FREE = Tokens()


class Line(NamedTuple):
    """One kind of token at one price."""

    kind: TokenKind
    quantity: int
    unit_pico: int
    list_unit_pico: int

    @property
    def pico(self) -> int:
        return self.quantity * self.unit_pico

    @property
    def list_pico(self) -> int:
        return self.quantity * self.list_unit_pico


def sku_of(event: Rated) -> Sku:
    return Sku(event.base_model, event.adapter_version or BASE, event.tier)  # type: ignore[arg-type]  # a Tier


def is_billable(event: Rated) -> bool:
    """A fault of ours costs the tenant what it received, and nothing where it received nothing."""
    return event.outcome != "error" or event.delivered


def tokens_of(event: Rated) -> Tokens:
    if not is_billable(event):
        return FREE
    uncached = event.prompt_tokens - event.cached_tokens
    return Tokens(uncached, event.cached_tokens, event.completion_tokens)


def rate(sku: Sku, tokens: Tokens, tariff: Tariff) -> tuple[Line, ...]:
    """A line for each kind of which there are tokens."""
    return tuple(
        Line(kind, count, tariff.unit_pico(sku, kind), tariff.list_pico(sku, kind))
        for kind in KINDS
        if (count := tokens.of(kind))
    )


def cost_pico(sku: Sku, tokens: Tokens, tariff: Tariff) -> int:
    return sum(line.pico for line in rate(sku, tokens, tariff))


def sums_of_quarter(row: UsageQuarter) -> tuple[Sku, Tokens]:
    """What a roll-up is rated as."""
    sku = Sku(row.base_model, row.adapter, row.tier)  # type: ignore[arg-type]  # a Tier
    return sku, Tokens(row.uncached_prompt_tokens, row.cached_prompt_tokens, row.completion_tokens)


def cost_of_quarter(row: UsageQuarter, tariff: Tariff) -> int:
    """Pico-USD; no tariff changes within a quarter hour."""
    return cost_pico(*sums_of_quarter(row), tariff)
