"""Price books: versioned, effective-dated, never changed once published."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

from loraplex_engine.messages import TIERS, Tier
from loraplex_platform.usage.money import pico_of, text_of
from loraplex_platform.usage.periods import Period, is_bucket_start

TokenKind = Literal["uncached_prompt", "cached_prompt", "completion"]
KINDS: tuple[TokenKind, ...] = get_args(TokenKind)
BASE = "base"  # in the place of an adapter version: the base model alone
ANY_ADAPTER = "*"
PER_TOKENS = 1_000_000  # prices are told per million tokens


class BadPriceBook(ValueError):
    """A price book cannot be published as it is."""


class Sku(NamedTuple):
    """What tokens are sold as."""

    base_model: str
    adapter: str  # version, or BASE
    tier: Tier


@dataclass(frozen=True, slots=True)
class Price:
    """Pico-USD a token; of the prices that fit, the most specific one holds."""

    kind: TokenKind
    pico: int
    base_model: str | None = None  # None: every one
    adapter: str | None = None  # a version, BASE, ANY_ADAPTER; None: with and without
    tier: Tier | None = None  # None: every one, at the tier's percentage

    def fits(self, sku: Sku, kind: TokenKind) -> bool:
        is_of_adapter = self.adapter in (None, sku.adapter) or (
            self.adapter == ANY_ADAPTER and sku.adapter != BASE
        )
        return (
            self.kind == kind
            and self.base_model in (None, sku.base_model)
            and self.tier in (None, sku.tier)
            and is_of_adapter
        )

    @property
    def rank(self) -> tuple[int, bool, bool]:
        """The adapter says more than the model, the model more than the tier."""
        adapter = 0 if self.adapter is None else 1 if self.adapter == ANY_ADAPTER else 2
        return adapter, self.base_model is not None, self.tier is not None


@dataclass(frozen=True, slots=True)
class PriceBook:
    """One version; a tenant's own book may leave prices to the list."""

    id: str
    effective_from: datetime
    prices: tuple[Price, ...]
    tenant_id: str | None = None  # None: the list
    tier_percent: Mapping[Tier, int] = field(default_factory=dict)  # of prices without a tier
    hosting_pico: int | None = None  # a GiB-hour of stored adapters

    def __post_init__(self) -> None:
        if not is_bucket_start(self.effective_from):
            raise BadPriceBook("a price book takes effect on a quarter of an hour")
        keys = {(p.kind, p.base_model, p.adapter, p.tier) for p in self.prices}
        if len(keys) < len(self.prices):
            raise BadPriceBook("two prices for the same thing")
        if self.tenant_id is None and not self._is_complete:
            raise BadPriceBook("the list needs a general price of every kind, and of hosting")
        if min(self.tier_percent.values(), default=0) < 0 or (self.hosting_pico or 0) < 0:
            raise BadPriceBook("neither a tier's share nor hosting is negative")
        for price in self.prices:
            shares = [self._percent(tier) for tier in TIERS] if price.tier is None else [100]
            if price.pico < 0 or any(price.pico * share % 100 for share in shares):
                raise BadPriceBook(f"{price}: not a whole number of pico-dollars in every tier")

    @property
    def _is_complete(self) -> bool:
        general = {p.kind for p in self.prices if p.rank == (0, False, False)}
        return general == set(KINDS) and self.hosting_pico is not None

    def unit_pico(self, sku: Sku, kind: TokenKind) -> int | None:
        """Pico-USD a token; None where this book says nothing."""
        fitting = [price for price in self.prices if price.fits(sku, kind)]
        if not fitting:
            return None
        price = max(fitting, key=lambda price: price.rank)
        return price.pico if price.tier else price.pico * self._percent(sku.tier) // 100

    def _percent(self, tier: Tier) -> int:
        return self.tier_percent.get(tier, 100)

    def to_json(self) -> dict[str, Any]:
        """As an operator writes it: dollars per million tokens, as text."""
        prices = []
        for price in self.prices:
            scope = {"base_model": price.base_model, "adapter": price.adapter, "tier": price.tier}
            given = {name: value for name, value in scope.items() if value is not None}
            per_million = text_of(price.pico * PER_TOKENS)
            prices.append({"kind": price.kind, "usd_per_million": per_million, **given})
        hosting = None if self.hosting_pico is None else text_of(self.hosting_pico)
        return {
            "prices": prices,
            "tier_percent": dict(self.tier_percent),
            "hosting_usd_per_gib_hour": hosting,
        }

    @classmethod
    def from_json(
        cls, id: str, effective_from: datetime, tenant_id: str | None, content: Mapping[str, Any]
    ) -> "PriceBook":
        """Raises BadPriceBook."""
        try:
            prices = tuple(_price(entry) for entry in content["prices"])
            percent = {tier: int(share) for tier, share in content.get("tier_percent", {}).items()}
            hosting = content.get("hosting_usd_per_gib_hour")
            hosting_pico = None if hosting is None else pico_of(hosting)
        except (ArithmeticError, KeyError, TypeError, ValueError) as error:
            raise BadPriceBook(f"not a price book: {error}") from error
        if not set(percent) <= set(TIERS):
            raise BadPriceBook(f"tiers are {', '.join(TIERS)}")
        return cls(id, effective_from, prices, tenant_id, percent, hosting_pico)


def _price(entry: Mapping[str, Any]) -> Price:
    pico, rest = divmod(pico_of(entry["usd_per_million"]), PER_TOKENS)
    if rest or entry["kind"] not in KINDS or entry.get("tier", TIERS[0]) not in TIERS:
        raise BadPriceBook(f"not a price: {dict(entry)}")
    scope = {name: entry.get(name) for name in ("base_model", "adapter", "tier")}
    return Price(entry["kind"], pico, **scope)


@dataclass(frozen=True, slots=True)
class Tariff:
    """What holds for one tenant at one moment: its own book before the list."""

    listed: PriceBook
    own: PriceBook | None = None

    def unit_pico(self, sku: Sku, kind: TokenKind) -> int:
        own = None if self.own is None else self.own.unit_pico(sku, kind)
        return self.list_pico(sku, kind) if own is None else own

    def list_pico(self, sku: Sku, kind: TokenKind) -> int:
        pico = self.listed.unit_pico(sku, kind)
        assert pico is not None, "a list is complete"
        return pico

    @property
    def hosting_pico(self) -> int:
        own = None if self.own is None else self.own.hosting_pico
        return self.list_hosting_pico if own is None else own

    @property
    def list_hosting_pico(self) -> int:
        assert self.listed.hosting_pico is not None, "a list is complete"
        return self.listed.hosting_pico

    @property
    def version(self) -> str:
        return self.listed.id if self.own is None else f"{self.listed.id}+{self.own.id}"


class Tariffs:
    """The books that may matter for one tenant, to be asked for any moment."""

    def __init__(self, books: list[PriceBook]) -> None:
        ordered = sorted(books, key=lambda book: book.effective_from, reverse=True)
        self._lists = [book for book in ordered if book.tenant_id is None]
        self._own = [book for book in ordered if book.tenant_id is not None]

    @classmethod
    def of(cls, books: Iterable[PriceBook], tenant_id: str) -> "Tariffs":
        """Those of the books that matter for this tenant."""
        return cls([book for book in books if book.tenant_id in (None, tenant_id)])

    def at(self, moment: datetime) -> Tariff:
        listed = next((b for b in self._lists if b.effective_from <= moment), None)
        if listed is None:
            raise BadPriceBook(f"no price list holds at {moment:%FT%TZ}")
        own = next((b for b in self._own if b.effective_from <= moment), None)
        return Tariff(listed, own)

    def segments(self, period: Period) -> Iterator[tuple[Period, Tariff]]:
        """The parts of a period in which nothing changes, oldest first."""
        cuts = [period.start, *self.changes(*period), period.end]
        for start, end in pairwise(cuts):
            yield Period(start, end), self.at(start)

    def changes(self, start: datetime, end: datetime) -> list[datetime]:
        """The moments within (start, end) at which another book takes effect."""
        moments = {book.effective_from for book in (*self._lists, *self._own)}
        return sorted(moment for moment in moments if start < moment < end)
