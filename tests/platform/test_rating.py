"""Rating and hosting: disjoint lines, linear in tokens and time, the same whenever they are made."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.usage_stand import BASE_MODEL, LIST, any_facts, book, facts

from loraplex_engine.messages import TIERS, Tier
from loraplex_platform.usage.hosting import hosting_lines
from loraplex_platform.usage.money import MOST_PICO, cents_of, pico_of, text_of
from loraplex_platform.usage.periods import Period
from loraplex_platform.usage.prices import (
    BASE,
    KINDS,
    BadPriceBook,
    PriceBook,
    Sku,
    Tariff,
    Tariffs,
)
from loraplex_platform.usage.rating import Tokens, cost_pico, rate, sku_of, tokens_of

TARIFF = Tariff(book())
counts = st.integers(0, 10**7)
tokens = st.builds(Tokens, counts, counts, counts)
skus = st.builds(
    Sku, st.just(BASE_MODEL), st.sampled_from([BASE, "version-1"]), st.sampled_from(TIERS)
)
DAY = timedelta(days=1)
GIB = 2**30


def test_each_token_is_on_one_line() -> None:
    event = facts(prompt_tokens=100, cached_tokens=40, completion_tokens=10)
    lines = rate(sku_of(event), tokens_of(event), TARIFF)
    assert [(line.kind, line.quantity, line.pico) for line in lines] == [
        ("uncached_prompt", 60, 60 * 200_000),
        ("cached_prompt", 40, 40 * 50_000),
        ("completion", 10, 10 * 800_000),
    ]


@given(any_facts())
def test_lines_cover_what_is_billed_and_nothing_else(event: object) -> None:
    lines = rate(sku_of(event), tokens_of(event), TARIFF)
    is_free = event.outcome == "error" and not event.delivered
    wanted = 0 if is_free else event.prompt_tokens + event.completion_tokens
    assert sum(line.quantity for line in lines) == wanted
    assert len({line.kind for line in lines}) == len(lines)


@given(skus, tokens, tokens)
def test_rating_a_sum_is_the_sum_of_ratings(sku: Sku, a: Tokens, b: Tokens) -> None:
    together = Tokens(*(x + y for x, y in zip(a, b, strict=True)))
    assert cost_pico(sku, together, TARIFF) == cost_pico(sku, a, TARIFF) + cost_pico(sku, b, TARIFF)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("adapter", [BASE, "version-1"])
def test_batch_discount_stacks_with_the_cached_price(kind: str, adapter: str) -> None:
    standard, batch = (TARIFF.unit_pico(Sku(BASE_MODEL, adapter, t), kind) for t in TIERS[1:])
    assert batch * 2 == standard


def test_the_most_specific_price_holds() -> None:
    prices = [
        *LIST["prices"],
        {"kind": "completion", "usd_per_million": "5", "adapter": "version-1"},
        {"kind": "completion", "usd_per_million": "3", "adapter": "version-1", "tier": "batch"},
        {"kind": "completion", "usd_per_million": "2", "base_model": BASE_MODEL},
    ]
    tariff = Tariff(book(LIST | {"prices": prices}))

    def unit(adapter: str, tier: Tier) -> int:
        return tariff.unit_pico(Sku(BASE_MODEL, adapter, tier), "completion")

    assert unit("version-1", "standard") == 5_000_000
    assert unit("version-1", "batch") == 3_000_000  # a price that names its tier is final
    assert unit("version-2", "standard") == 1_000_000
    assert unit(BASE, "standard") == 2_000_000


def test_a_tenants_own_book_leaves_the_rest_to_the_list() -> None:
    own = {"prices": [{"kind": "completion", "usd_per_million": "0.60"}]}
    tariff = Tariff(book(), book(own, id="own", tenant_id="ten_a"))
    sku = Sku(BASE_MODEL, BASE, "standard")
    [prompt, completion] = rate(sku, Tokens(1, 0, 1), tariff)
    assert (prompt.unit_pico, prompt.list_unit_pico) == (200_000, 200_000)
    assert (completion.unit_pico, completion.list_unit_pico) == (600_000, 800_000)


def test_prices_are_those_of_the_moment() -> None:
    change = datetime(2026, 7, 1, tzinfo=UTC)
    dearer = LIST | {"prices": [dict(p, usd_per_million="9") for p in LIST["prices"]]}
    tariffs = Tariffs([book(), book(dearer, at=change, id="later")])
    assert tariffs.at(change - timedelta(microseconds=1)).version == "list"
    assert tariffs.at(change).version == "later"
    with pytest.raises(BadPriceBook):
        tariffs.at(datetime(2025, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"prices": LIST["prices"][:2], "hosting_usd_per_gib_hour": "1"},
        {"prices": LIST["prices"]},
        LIST | {"prices": [*LIST["prices"], LIST["prices"][0]]},
        LIST | {"tier_percent": {"gold": 1}},
        LIST
        | {
            "tier_percent": {"batch": 33},
            "prices": [*LIST["prices"][:2], {"kind": "completion", "usd_per_million": "0.000001"}],
        },
        LIST | {"prices": [{"kind": "completion", "usd_per_million": "0.0000001"}]},
        LIST | {"prices": [{"kind": "thought", "usd_per_million": "1"}]},
        LIST | {"prices": [{"kind": "completion", "usd_per_million": "much"}]},
        LIST | {"prices": [{"kind": "completion", "usd_per_million": "-1"}]},
        LIST | {"tier_percent": {"batch": -50}},
        LIST | {"hosting_usd_per_gib_hour": "-1"},
    ],
)
def test_bad_books_are_refused(content: dict[str, object]) -> None:
    with pytest.raises(BadPriceBook):
        book(content)


def test_a_book_survives_its_own_text() -> None:
    made = book()
    assert PriceBook.from_json(made.id, made.effective_from, None, made.to_json()) == made


@given(st.integers(-MOST_PICO, MOST_PICO))
def test_money_survives_its_text(pico: int) -> None:
    assert pico_of(text_of(pico)) == pico


def test_halves_of_a_cent_go_to_the_even_one() -> None:
    assert [cents_of(half * 5 * 10**9) for half in (-1, 1, 2, 3, 5)] == [0, 0, 1, 2, 2]


@dataclass(frozen=True, slots=True)
class Stored:
    """An adapter as the catalogue tells it."""

    num_bytes: int
    created_at: datetime
    removed_at: datetime | None
    id: str = "adp_1"
    name: str = "support"


START = datetime(2026, 5, 1, tzinfo=UTC)
moments = st.integers(0, 90 * 86_400_000_000).map(lambda us: START + timedelta(microseconds=us))
TWO_PRICES = Tariffs(
    [book(), book(LIST | {"hosting_usd_per_gib_hour": "0.0037"}, at=START + 40 * DAY, id="later")]
)


def hosting_pico(adapter: Stored, start: datetime, end: datetime) -> int:
    return sum(line.pico for line in hosting_lines(adapter, Period(start, end), TWO_PRICES))


@given(st.integers(1, 10**10), st.lists(moments, min_size=5, max_size=5))
def test_hosting_of_a_period_is_the_sum_of_its_parts(num_bytes: int, at: list[datetime]) -> None:
    created, *cuts = sorted(at[:4])
    adapter = Stored(num_bytes, created, at[4] if at[4] > created else None)
    whole = hosting_pico(adapter, START, START + 90 * DAY)
    edges = [START, *cuts, START + 90 * DAY]
    parts = [hosting_pico(adapter, a, b) for a, b in pairwise(edges)]
    assert sum(parts) == whole


def test_hosting_is_bytes_times_hours_times_price() -> None:
    adapter = Stored(GIB // 2, START, START + 10 * DAY)
    [line] = hosting_lines(adapter, Period(START, START + 30 * DAY), TWO_PRICES)
    assert line.pico == pico_of("0.002") * 240 // 2


def test_hosting_changes_its_price_when_the_book_does() -> None:
    adapter = Stored(GIB, START, None)
    lines = hosting_lines(adapter, Period(START + 39 * DAY, START + 41 * DAY), TWO_PRICES)
    assert [line.pico for line in lines] == [24 * pico_of("0.002"), 24 * pico_of("0.0037")]
