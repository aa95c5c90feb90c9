"""The sampler against its formula in float64, and a row's independence of its neighbours."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loraplex_engine.messages import SamplingParams
from loraplex_engine.sampler import Sampler, draw, uniforms
from loraplex_engine.scheduling.policy import ScheduledTokens
from loraplex_engine.sequence import Sequence

VOCAB_SIZE = 400
EOS = 5


def item(
    prompt: tuple[int, ...] = (1, 2), output: tuple[int, ...] = (), **sampling: Any
) -> ScheduledTokens:
    """A sequence about to sample the token after its output."""
    params = replace(SamplingParams(max_tokens=99), **sampling)
    seq = Sequence(
        "r", prompt, params, "acme", 0.0, eos_token_ids=frozenset([EOS]), output_ids=list(output)
    )
    return ScheduledTokens(seq, seq.num_known - 1, 1, True)


def logits_of(num_rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 3


def sample(logits: torch.Tensor, *items: ScheduledTokens) -> list[int]:
    token_ids: list[int] = Sampler().sample(logits, items).token_ids.tolist()
    return token_ids


def formula(row: npt.NDArray[np.float64], params: SamplingParams) -> npt.NDArray[np.float64]:
    """Probabilities by the definition: temperature, min_p, top_k, then top_p of what is left."""

    def softmax(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        weights: npt.NDArray[np.float64] = np.exp(x - x.max())
        return weights / weights.sum()

    scaled = row / params.temperature
    p = softmax(scaled)
    scaled[p < params.min_p * p.max()] = -np.inf
    order = np.argsort(-scaled)
    if params.top_k:
        scaled[order[params.top_k :]] = -np.inf
    p = softmax(scaled)
    nucleus = np.cumsum(p[order]) - p[order] < params.top_p
    nucleus[0] = True
    p[order[~nucleus]] = 0
    return p / p.sum()


parameters = st.builds(
    SamplingParams,
    max_tokens=st.just(9),
    temperature=st.floats(0.1, 3.0),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 1.0)),
    top_k=st.one_of(st.just(0), st.integers(1, VOCAB_SIZE + 9)),
    min_p=st.one_of(st.just(0.0), st.floats(0.001, 0.9)),
)


@given(st.lists(parameters, min_size=1, max_size=5), st.integers(0, 999))
@settings(deadline=None)
def test_draws_follow_the_formula(params: list[SamplingParams], seed: int) -> None:
    logits = logits_of(len(params), seed)
    uniform = uniforms([seed] * len(params), range(len(params)))
    drawn = draw(logits, params, uniform).tolist()
    for row, own, u, token in zip(logits, params, uniform, drawn, strict=True):
        cumulative = np.cumsum(formula(row.double().numpy(), own))
        # float32 may move a limit of top_p, or the border between two tokens, by a hair
        lower = cumulative[token - 1] if token else 0.0
        assert lower - 1e-3 <= u <= cumulative[token] + 1e-3


@given(st.lists(parameters, min_size=2, max_size=6), st.integers(0, 999))
@settings(deadline=None)
def test_a_row_draws_the_same_alone_and_among_others(
    params: list[SamplingParams], seed: int
) -> None:
    logits = logits_of(len(params), seed)
    uniform = uniforms([seed] * len(params), range(len(params)))
    together = draw(logits, params, uniform).tolist()
    rows = zip(logits, params, uniform, strict=True)
    assert together == [int(draw(row[None], [p], np.array([u]))) for row, p, u in rows]


def test_draws_are_distributed_as_the_formula_says() -> None:
    num_draws, params = 4000, SamplingParams(max_tokens=9, top_k=5, temperature=1.5)
    logits = logits_of(1).expand(num_draws, -1)
    uniform = uniforms([3] * num_draws, range(num_draws))
    counts = Counter(draw(logits, [params] * num_draws, uniform).tolist())
    expected = formula(logits[0].double().numpy(), params)
    assert set(counts) == set(np.flatnonzero(expected))
    for token, count in counts.items():
        deviation = np.sqrt(num_draws * expected[token] * (1 - expected[token]))
        assert abs(count - num_draws * expected[token]) < 4 * deviation


def test_uniforms_depend_on_seed_and_step_and_fill_the_interval() -> None:
    numbers = uniforms([*range(1000), *[7] * 1000], [0] * 1000 + [*range(1000)])
    assert len(set(numbers.tolist())) == 1999  # (7, 0) occurs twice
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.03
    assert uniforms([-1], [3]) == uniforms([2**64 - 1], [3])


def test_a_tiny_top_p_leaves_the_likeliest() -> None:
    logits = logits_of(1)
    assert sample(logits, item(top_p=1e-9)) == logits.argmax(-1).tolist()


def test_a_flat_distribution_is_cut_beyond_the_likeliest_few() -> None:
    params = SamplingParams(max_tokens=9, top_p=0.9)
    flat = torch.linspace(0, 1e-4, VOCAB_SIZE)[None]
    least = VOCAB_SIZE - round(0.9 * VOCAB_SIZE)
    (first,) = draw(flat, [params], np.array([0.0])).tolist()
    assert abs(first - least) <= 1


def test_greedy_takes_the_first_of_the_highest() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, [9, 30]] = 1.0
    assert sample(logits, item(temperature=0.0)) == [9]


def test_greedy_and_drawn_rows_share_a_batch() -> None:
    logits = logits_of(3)
    hot = item(seed=11)
    mixed = sample(logits, item(temperature=0.0), hot, item(temperature=0.0))
    assert mixed[::2] == logits[::2].argmax(-1).tolist()
    assert mixed[1:2] == sample(logits[1:2], hot)


def test_the_draw_depends_on_seed_and_step() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    assert sample(logits, item(seed=1)) == sample(logits, item(seed=1, prompt=(4, 5, 6)))
    assert sample(logits, item(seed=1)) != sample(logits, item(seed=2))
    assert sample(logits, item(seed=1)) != sample(logits, item(seed=1, output=(8,)))


def test_penalties_follow_the_formula() -> None:
    logits = logits_of(1)
    penalised = item(
        prompt=(1, 2, 3),
        output=(3, 4, 4),
        repetition_penalty=1.5,
        presence_penalty=0.25,
        frequency_penalty=0.5,
        logit_bias=((4, 0.125), (17, -2.0)),
        temperature=0.0,
        logprobs=0,
    )
    expected = logits[0].double()
    for token in (1, 2, 3, 4):
        expected[token] *= 1.5 if expected[token] < 0 else 1 / 1.5
    expected[3] -= 0.25 + 0.5
    expected[4] -= 0.25 + 2 * 0.5
    expected[4] += 0.125
    expected[17] -= 2.0
    adjusted = Sampler()._adjust(logits, [penalised])[0]
    torch.testing.assert_close(adjusted.double(), expected, rtol=1e-5, atol=1e-6)


def test_a_bias_decides_a_greedy_token_and_leaves_neighbours_alone() -> None:
    logits = logits_of(2)
    before = logits.clone()
    biased = item(temperature=0.0, logit_bias=((42, 100.0),))
    assert sample(logits, biased, item(temperature=0.0)) == [42, int(logits[1].argmax())]
    assert torch.equal(logits, before)


@pytest.mark.parametrize(
    "extreme",
    [
        {"temperature": 1e-320},
        {"temperature": 1e-320, "repetition_penalty": 1e-320},
        {"temperature": 2.0, "repetition_penalty": 1e-320},
        {"repetition_penalty": 10.0, "min_p": 1e-320, "top_p": 1e-320, "top_k": 1},
        {"temperature": 1e-320, "logit_bias": tuple((i, -100.0) for i in range(VOCAB_SIZE))},
    ],
)
def test_extreme_parameters_draw_a_token_of_the_vocabulary(extreme: dict[str, Any]) -> None:
    prompt = tuple(range(VOCAB_SIZE))
    logits = 100 * logits_of(20)
    drawn = sample(logits, *(item(prompt=prompt, seed=seed, **extreme) for seed in range(20)))
    assert all(0 <= token < VOCAB_SIZE for token in drawn)


def test_the_least_temperature_takes_the_most_likely() -> None:
    logits = logits_of(5)
    coldest = sample(logits, *(item(seed=seed, temperature=1e-320) for seed in range(5)))
    assert coldest == logits.argmax(-1).tolist()


@pytest.mark.parametrize("num_output", [0, 1, 2])
def test_end_tokens_are_banned_until_min_tokens(num_output: int) -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, [EOS, 7, 9]] = torch.tensor([3.0, 2.0, 1.0])
    short = item(output=(1,) * num_output, min_tokens=2, stop_token_ids=(7,), temperature=0.0)
    assert sample(logits, short) == [EOS if num_output == 2 else 9]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=5), st.integers(0, 999), st.integers(1, 60)
)
def test_equal_log_probabilities_come_in_the_vocabularys_order_whoever_else_asks(
    wanted: list[int], seed: int, steps: int
) -> None:
    """Logits on a coarse grid, so that many are equal, also where a row's list ends."""
    logits = (logits_of(len(wanted), seed) * steps / 20).round()
    items = [item(temperature=0.0, logprobs=count) for count in wanted]
    found = Sampler().sample(logits, items).row_logprobs(items)
    for row, count in enumerate(wanted):
        in_order = np.lexsort((np.arange(VOCAB_SIZE), -logits[row].numpy()))[:count].tolist()
        assert [token_id for token_id, _ in found[row].top] == in_order


def test_log_probabilities_are_of_the_models_own_distribution() -> None:
    logits = logits_of(3)
    items = [
        item(temperature=0.0, logprobs=2),
        item(temperature=0.0),
        item(seed=4, temperature=2.0, logprobs=0, logit_bias=((42, 100.0),)),
    ]
    drawn = Sampler().sample(logits, items)
    found = drawn.row_logprobs(items)
    expected = logits.double().log_softmax(-1)
    assert sorted(found) == [0, 2]
    assert found[0].token_id == logits[0].argmax()
    assert found[0].logprob == pytest.approx(float(expected[0].max()), abs=1e-5)
    assert [token for token, _ in found[0].top] == logits[0].topk(2).indices.tolist()
    assert found[0].top[1][1] == pytest.approx(float(expected[0].topk(2).values[1]), abs=1e-5)
    assert (found[2].token_id, found[2].top) == (42, ())
    assert found[2].logprob == pytest.approx(float(expected[2, 42]), abs=1e-5)
