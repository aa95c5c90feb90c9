"""Blocks and the prefix cache: nothing leaks, nothing is freed twice, nothing is shared by mistake."""

from hypothesis import given
from hypothesis import strategies as st

from loraplex_engine.messages import SamplingParams
from loraplex_engine.prefix_cache import PagedKv, root_key
from loraplex_engine.sequence import Sequence

BLOCK = 4


def make_sequence(tokens: list[int], root: bytes = b"root") -> Sequence:
    return Sequence(
        request_id="r",
        prompt_ids=tuple(tokens),
        sampling=SamplingParams(max_tokens=8),
        tenant="acme",
        arrival_s=0.0,
        cache_root=root,
    )


def compute_all(kv: PagedKv, seq: Sequence) -> int:
    cached = kv.start(seq)
    assert kv.extend(seq, seq.num_known)
    seq.num_computed = seq.num_scheduled = seq.num_known
    kv.commit(seq)
    return cached


def test_second_sequence_reuses_full_blocks_but_computes_its_last_token() -> None:
    kv = PagedKv(num_blocks=16, block_size=BLOCK)
    compute_all(kv, make_sequence(list(range(8))))
    assert kv.match_prefix(make_sequence(list(range(8)))) == 4
    assert kv.match_prefix(make_sequence([*range(8), 99])) == 8


def test_prefixes_under_another_root_are_never_shared() -> None:
    kv = PagedKv(num_blocks=16, block_size=BLOCK)
    compute_all(kv, make_sequence(list(range(8)), b"acme"))
    assert kv.match_prefix(make_sequence(list(range(9)), b"globex")) == 0


def test_root_key_fields_cannot_run_into_each_other() -> None:
    assert root_key("m", "bf16", 16, "ab", "c") != root_key("m", "bf16", 16, "a", "bc")
    assert root_key("m", "bf16", 16, "a", None) != root_key("m", "bf16", 16, "a", "x")


def test_next_block_key_is_shared_by_those_who_want_the_same_block() -> None:
    kv = PagedKv(num_blocks=16, block_size=BLOCK)
    compute_all(kv, make_sequence(list(range(8))))
    one, two = make_sequence([*range(12), 1]), make_sequence([*range(12), 2])
    other = make_sequence([*range(8), 9, 9, 9, 9, 9])
    assert kv.next_block_key(one) == kv.next_block_key(two) is not None
    assert kv.next_block_key(other) != kv.next_block_key(one)
    assert kv.next_block_key(make_sequence(list(range(8)))) is None


operations = st.lists(
    st.tuples(
        st.sampled_from(["start", "append", "free", "fork"]),
        st.integers(0, 7),
        st.integers(1, 20),
    ),
    max_size=60,
)


@given(operations)
def test_random_operations_keep_the_books(steps: list[tuple[str, int, int]]) -> None:
    kv = PagedKv(num_blocks=12, block_size=BLOCK)
    live: list[Sequence] = []
    for operation, pick, amount in steps:
        if operation == "start":
            seq = make_sequence([pick % 2] * amount)
            kv.start(seq)
            if kv.extend(seq, seq.num_known):
                seq.num_computed = seq.num_scheduled = seq.num_known
                kv.commit(seq)
                live.append(seq)
            else:
                kv.free(seq)
        elif live and operation == "append":
            seq = live[pick % len(live)]
            if kv.extend(seq, seq.num_known + 1):
                seq.output_ids.append(amount)
                seq.num_computed = seq.num_scheduled = seq.num_known
                kv.commit(seq)
        elif live and operation == "fork":
            origin = live[pick % len(live)]
            fork = make_sequence([*origin.prompt_ids, *origin.output_ids, amount])
            assert kv.start(fork) // BLOCK == len(fork.block_table)
            live.append(fork)
        elif live and operation == "free":
            seq = live.pop(pick % len(live))
            kv.free(seq)
            kv.free(seq)
        kv.check_integrity(live)
    for seq in live:
        kv.free(seq)
    kv.check_integrity([])
    assert kv.num_free == kv.num_blocks
