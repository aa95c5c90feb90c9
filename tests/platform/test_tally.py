"""What a request's usage says, however its sequences end."""

from hypothesis import given
from hypothesis import strategies as st

from loraplex_engine.messages import Finished, FinishReason, Generate, SamplingParams, TokenEvent
from loraplex_platform.openai.tally import Tally

REASONS: list[FinishReason] = ["stop", "length", "abort", "error"]


def requests(prompts: list[int], num_choices: int) -> list[Generate]:
    return [
        Generate(
            request_id=f"r.{index}",
            prompt_ids=(1,) * prompts[index // num_choices],
            sampling=SamplingParams(max_tokens=9),
            tenant="t",
            project="p",
            cache_scope="s",
            index=index,
        )
        for index in range(len(prompts) * num_choices)
    ]


def last_word(prompt: int, completion: int, reason: FinishReason, cached: int = 0) -> Finished:
    return Finished(
        request_id="r",
        finish_reason=reason,
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=completion,
        recomputed_tokens=0,
        queue_s=0.5,
        ttft_s=None,
        total_s=1.0,
        engine_s=0.25,
        tier="standard",
    )


@given(
    prompts=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    num_choices=st.integers(1, 3),
    counts=st.lists(st.integers(0, 5), min_size=9, max_size=9),
    ended=st.lists(st.sampled_from([*REASONS, None]), min_size=9, max_size=9),
)
def test_each_prompt_counts_once_and_each_token_once(
    prompts: list[int], num_choices: int, counts: list[int], ended: list[FinishReason | None]
) -> None:
    tally = Tally.of(requests(prompts, num_choices), num_choices)
    for index, sequence in enumerate(tally.sequences):
        for _ in range(counts[index]):
            tally.add(index, TokenEvent("r", (1,), "x"), 0.0)
        reason = ended[index]
        if reason is not None:
            tally.add(index, last_word(sequence.prompt_tokens, counts[index], reason), 0.0)
    total = len(tally.sequences)
    assert tally.usage.completion_tokens == sum(counts[:total])
    assert tally.usage.prompt_tokens <= sum(prompts)
    if all(ended[:total]):
        assert tally.usage.prompt_tokens == sum(prompts)


def test_restart_forgets_the_lost_attempt() -> None:
    tally = Tally.of(requests([4], 1), 1)
    tally.add(0, TokenEvent("r", (1, 2), "xy"), 3.0)
    tally.restart()
    assert (tally.usage.completion_tokens, tally.usage.prompt_tokens) == (0, 0)
    assert (tally.first_token_s, tally.attempts) == (None, 2)


def test_engines_last_word_overrides_our_count() -> None:
    tally = Tally.of(requests([4], 1), 1)
    tally.add(0, TokenEvent("r", (1,), "x"), 0.0)
    tally.add(0, last_word(4, 3, "stop", cached=2), 0.0)
    assert (tally.usage.completion_tokens, tally.usage.cached_tokens) == (3, 2)
    assert (tally.outcome, tally.queue_s, tally.engine_s) == ("stop", 0.5, 0.25)


def test_outcome_is_the_worst_of_any_sequence() -> None:
    tally = Tally.of(requests([1], 3), 3)
    assert tally.outcome == "disconnect"
    for index, reason in enumerate(("stop", "length", "stop")):
        tally.add(index, last_word(1, 1, reason), 0.0)
    assert tally.outcome == "length"
