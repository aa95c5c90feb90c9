"""The loop: what it accepts, how sequences end, what it counts, and what survives a fault."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.memory_adapters import MemoryAdapters
from tests.engine.scripted import EOS, Scripted, request

from loraplex_engine.messages import (
    Abort,
    AdapterFailed,
    Drain,
    DropAdapter,
    DropPrefix,
    Explain,
    Explanation,
    Finished,
    Generate,
    PinAdapter,
    PreloadAdapter,
    RegisterPrefix,
    SetTenant,
    TenantShare,
    TokenEvent,
)
from loraplex_engine.scheduling.hfs import Hfs
from loraplex_engine.scheduling.policies import PolicyName


def test_a_sequence_ends_at_its_length() -> None:
    world = Scripted()
    world.run(request(max_tokens=3))
    assert (world.text(), world.finished().finish_reason) == ("abc", "length")
    assert world.finished().completion_tokens == 3


def says(text: str) -> Scripted:
    """An engine that says a text, then its end token."""
    return Scripted(lambda seq: [*map(ord, text), EOS][len(seq.output_ids)])


def test_the_end_token_stops_and_has_no_text() -> None:
    world = says("ab")
    world.run(request())
    end = world.finished()
    assert (world.text(), end.finish_reason, end.stop_reason) == ("ab", "stop", None)
    assert end.completion_tokens == 3


def test_an_ignored_end_token_is_a_token_like_others() -> None:
    world = Scripted(lambda seq: EOS)
    world.run(request(ignore_eos=True))
    assert world.finished().finish_reason == "length"


def test_a_stop_token_is_named_as_the_reason() -> None:
    world = says("abcd")
    world.run(request(stop_token_ids=(ord("c"),)))
    assert (world.text(), world.finished().stop_reason) == ("ab", ord("c"))


def test_a_stop_string_across_tokens_is_cut_and_named() -> None:
    world = says("abcd")
    world.run(request(stop=("bc", "zz")))
    assert (world.text(), world.finished().stop_reason) == ("a", "bc")
    assert world.finished().completion_tokens == 3


def test_the_beginning_of_a_stop_string_is_shown_when_the_rest_never_comes() -> None:
    world = says("abb")
    world.run(request(stop=("bbb",)))
    assert world.text() == "abb"


def test_below_min_tokens_nothing_stops() -> None:
    world = says("abab")
    world.run(request(stop=("b",), min_tokens=2))
    assert (world.text(), world.finished().completion_tokens) == ("aba", 4)


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (request(prompt=""), "bad_request"),
        (request(prompt="é"), "bad_request"),
        (request(logit_bias=((128, 1.0),)), "bad_request"),
        (request(max_tokens=0), "bad_request"),
        (request(temperature=float("nan")), "bad_request"),
        (request(repetition_penalty=float("inf")), "bad_request"),
        (request(stop_token_ids=(128,)), "bad_request"),
        (request(stop=("",)), "bad_request"),
        (request(max_tokens=60), "context_too_long"),
    ],
)
def test_what_can_never_be_served_is_refused_at_once(refused: Generate, error: str) -> None:
    world = Scripted()
    world.run(refused)
    assert (world.finished().finish_reason, world.finished().error) == ("error", error)
    assert world.runner.plans == []


def test_the_longest_request_that_fits_is_served() -> None:
    world = Scripted()
    world.run(request(max_tokens=59))
    assert world.finished().completion_tokens == 59


def test_an_id_that_is_live_is_not_taken_twice(caplog: pytest.LogCaptureFixture) -> None:
    world = Scripted()
    world.run(request(), request())
    assert world.finished().finish_reason == "length"
    assert "already live" in caplog.text


def test_a_cached_prefix_is_accounted() -> None:
    world = Scripted()
    world.run(request("first", "abcdefghi"))
    world.run(request("second", "abcdefghi"))
    assert (world.finished("first").cached_tokens, world.finished("second").cached_tokens) == (0, 8)
    tokens = world.engine.stats().tokens
    assert (tokens.prompt, tokens.cached, tokens.completion) == (18, 8, 10)
    assert dict(world.engine.stats().tokens_by_tenant) == {"acme": tokens}


def test_times_are_of_the_engines_clock() -> None:
    world = Scripted()
    world.engine.submit(request())
    world.clock.now += 10
    world.run()
    end = world.finished()
    assert end.ttft_s is not None
    assert 10 < end.queue_s < end.ttft_s < end.total_s < 11
    assert 0 < end.engine_s < end.total_s - end.queue_s


def test_an_abort_returns_blocks_at_once() -> None:
    world = Scripted()
    world.engine.submit(request(max_tokens=30))
    world.step()
    assert world.kv.num_free < 16
    world.engine.submit(Abort("r"))
    assert world.kv.num_free == 16
    world.run()
    assert world.finished().finish_reason == "abort"


def test_only_whole_answers_teach_how_long_answers_get() -> None:
    world = Scripted(policy="hfs")
    assert isinstance(world.engine.policy, Hfs)
    lengths = world.engine.policy.admission.lengths
    untaught = lengths.quantile(0.5, "t", None, "standard")
    for _ in range(20):
        world.engine.submit(request(max_tokens=30))
        world.step()
        world.step()
        world.engine.submit(Abort("r"))
        world.run()
    assert lengths.quantile(0.5, "t", None, "standard") == untaught
    for _ in range(20):
        world.run(request(max_tokens=2))
    assert lengths.quantile(0.5, "t", None, "standard") < untaught


def test_an_unknown_id_is_no_matter_to_abort_and_explain() -> None:
    world = Scripted()
    world.engine.submit(Abort("nobody"))
    world.engine.submit(Explain("nobody"))
    assert world.step() == [Explanation("nobody", None, None, 0, None)]


@pytest.mark.parametrize("where", ["launch", "collect"])
def test_a_fault_ends_the_sequences_of_its_step_alone(where: str) -> None:
    world = Scripted(max_num_seqs=1)
    world.runner.faults = [where]
    world.run(request("hurt"), request("well"))
    assert world.finished("hurt").error == "internal"
    assert world.finished("well").finish_reason == "length"
    world.check_books()
    assert world.kv.num_free == 16


def test_a_fault_in_ones_text_is_ones_own() -> None:
    world = Scripted(lambda seq: -1 if seq.request_id == "hurt" else 65)
    world.run(request("hurt"), request("well"))
    assert world.finished("hurt").error == "internal"
    assert world.finished("well").finish_reason == "length"


def test_draining_finishes_what_runs_and_takes_nothing_new() -> None:
    world = Scripted()
    world.engine.submit(request("old"))
    world.step()
    world.engine.submit(Drain(60.0))
    assert not world.engine.is_drained
    world.run(request("new"))
    assert world.finished("old").finish_reason == "length"
    assert world.finished("new").error == "unavailable"
    assert world.engine.is_drained
    assert world.engine.stats().draining


def test_draining_ends_what_outlives_it() -> None:
    world = Scripted()
    world.engine.submit(request(max_tokens=50))
    world.engine.submit(Drain(1.0))
    world.step()
    world.clock.now += 1
    world.step()
    assert world.finished().error == "unavailable"
    assert world.engine.is_drained


def with_adapters(*names: str, num_slots: int = 1, polls: int = 1) -> Scripted:
    """Adapters without weights: only their comings and goings matter here."""
    return Scripted(adapters=MemoryAdapters(names, num_slots=num_slots, polls=polls))


def test_a_sequence_waits_for_its_adapter_and_says_so() -> None:
    world = with_adapters("a", polls=3)
    world.engine.submit(request(adapter="a"))
    world.step()
    assert world.engine.is_stalled
    world.step()
    (waiting,) = world.engine.stats().sequences
    assert (waiting.phase, waiting.reason, waiting.adapter) == ("loading", "loading", "a")
    world.run()
    assert world.finished().finish_reason == "length"
    assert world.engine.stats().resident_adapters == ("a",)


def test_an_adapter_that_fails_ends_those_who_wait_for_it() -> None:
    world = with_adapters("good")
    world.run(request("bad", adapter="missing"), request("base"), request("good", adapter="good"))
    assert AdapterFailed("missing", "no such version") in world.events
    assert world.finished("bad").error == "unknown_adapter"
    assert world.finished("base").finish_reason == "length"
    assert world.finished("good").finish_reason == "length"


def test_an_adapter_whose_tokens_could_not_be_read_says_nothing() -> None:
    """It came nevertheless: what it says would be told in the base model's words."""

    class Unreadable:
        def of(self, version: str) -> None:
            raise OSError(version)

    world = with_adapters("a")
    world.adapters.tokens = Unreadable()
    world.run(request("r", adapter="a"), request("base"))
    ended = world.finished()
    assert (ended.error, ended.completion_tokens, world.text()) == ("unknown_adapter", 0, "")
    assert world.text("base") == "abcde"
    world.check_books()


def test_a_dropped_adapter_goes_once_its_requests_have_ended() -> None:
    world = with_adapters("a")
    world.engine.submit(request(adapter="a"))
    while not any(isinstance(event, TokenEvent) for event in world.step()):
        pass
    world.engine.submit(DropAdapter("a"))
    assert world.engine.stats().resident_adapters == ("a",)
    world.run()
    assert world.engine.stats().resident_adapters == ()


def test_what_still_runs_on_a_dropped_adapter_is_ended_at_its_deadline() -> None:
    world = with_adapters("a", "b", num_slots=2)
    for name in ("a", "b"):
        world.engine.submit(request(name, adapter=name, max_tokens=20))
    for _ in range(6):
        world.step()
    world.engine.submit(DropAdapter("a", 5.0))
    world.clock.now += 4.0
    world.step()
    assert world.engine.stats().running == 2
    world.clock.now += 2.0
    world.step()
    world.run()
    ended = world.finished("a")
    assert (ended.finish_reason, ended.error) == ("error", "unknown_adapter")
    assert world.finished("b").finish_reason == "length"
    assert "a" not in world.engine.stats().resident_adapters


def test_a_version_that_is_added_again_outlives_the_deadline_of_its_deletion() -> None:
    world = with_adapters("a")
    world.engine.submit(request("old", adapter="a", max_tokens=20))
    for _ in range(3):
        world.step()
    world.engine.submit(DropAdapter("a", 5.0))
    world.engine.submit(request("new", adapter="a", max_tokens=20))
    world.step()
    world.clock.now += 6.0
    world.run()
    assert world.finished("old").error == "unknown_adapter"
    assert world.finished("new").finish_reason == "length"


def test_a_preloaded_adapter_is_there_before_its_first_request() -> None:
    world = with_adapters("a", "b")
    world.engine.submit(PreloadAdapter("a", "acme"))
    world.step()
    assert world.engine.stats().resident_adapters == ("a",)


def test_a_pinned_adapter_keeps_its_slot() -> None:
    world = with_adapters("a", "b")
    world.engine.submit(PinAdapter("a", "acme", True))
    world.step()
    world.engine.submit(request(adapter="b"))
    for _ in range(3):
        world.step()
    world.engine.submit(Explain("r"))
    (answer,) = world.step()
    assert isinstance(answer, Explanation)
    assert (answer.phase, answer.reason) == ("waiting", "slot")
    world.engine.submit(PinAdapter("a", "acme", False))
    world.run()
    assert world.engine.stats().resident_adapters == ("b",)


def test_shares_and_prefixes_are_taken() -> None:
    world = Scripted()
    world.engine.submit(SetTenant(TenantShare("acme", weight=2.0)))
    world.engine.submit(RegisterPrefix("p", "acme", "scope", None, (1, 2)))
    (listed,) = world.engine.stats().prefixes
    assert (listed.prefix_id, listed.num_tokens) == ("p", 0)
    world.engine.submit(DropPrefix("p"))
    assert world.engine.stats().prefixes == ()
    assert not world.engine.has_work


def test_statistics_tell_the_whole_state() -> None:
    world = Scripted(max_num_seqs=1)
    world.engine.submit(request("running", max_tokens=20))
    world.engine.submit(request("waiting"))
    world.step()
    first, second = world.engine.stats(), world.engine.stats()
    assert (first.running, first.waiting, first.steps) == (1, 1, 1)
    assert (first.free_blocks, first.num_blocks) == (14, 16)
    assert [s.phase for s in first.sequences] == ["decode", "waiting"]
    assert first.sequences[1].waited_s > 0
    assert first.step_s > 0
    assert first.spare == 1 - 5 / 8
    assert second.sequence_number == first.sequence_number + 1
    assert second.engine_clock_s > first.engine_clock_s


actions = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 30), st.sampled_from([None, "a", "b", "no"])),
        st.tuples(st.just("abort"), st.integers(0, 30), st.none()),
        st.tuples(st.just("step"), st.integers(1, 4), st.none()),
        st.tuples(st.just("fault"), st.sampled_from(["launch", "collect"]), st.none()),
    ),
    max_size=40,
)


@pytest.mark.parametrize(
    ("policy", "max_num_batched_tokens"), [("fcfs", 8), ("priority", 8), ("static", 8), ("hfs", 64)]
)
@given(steps=actions)
@settings(deadline=None, max_examples=100)
def test_any_order_of_events_keeps_the_books(
    policy: PolicyName,
    max_num_batched_tokens: int,
    steps: list[tuple[str, int | str, str | None]],
) -> None:
    adapters = MemoryAdapters(("a", "b"), num_slots=1, polls=2)
    world = Scripted(
        num_blocks=8,
        adapters=adapters,
        policy=policy,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    num_submitted = 0
    for action, value, adapter in steps:
        match action, value:
            case "submit", int(length):
                prompt = "abc" * 10
                sent = request(str(num_submitted), prompt[:length], adapter=adapter, max_tokens=9)
                world.engine.submit(sent)
                num_submitted += 1
            case "abort", int(which):
                world.engine.submit(Abort(str(which)))
            case "step", int(count):
                for _ in range(count):
                    world.step()
            case "fault", str(where):
                world.runner.faults.append(where)
        world.check_books()
    world.run()
    world.check_books()
    ends = [event.request_id for event in world.events if isinstance(event, Finished)]
    assert sorted(ends, key=int) == [str(i) for i in range(num_submitted)]
    assert world.kv.num_free == 8
    assert not any(adapters.users.values())
    for i in range(num_submitted):
        if world.finished(str(i)).finish_reason == "length":
            assert world.text(str(i)) == "abcdefghi"
