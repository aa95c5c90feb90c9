"""Text as it grows: always what the whole would read, never half a character, nothing past a stop."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from loraplex_engine.detokenizer import REPLACEMENT, Detokenizer


def byte_level() -> Tokenizer:
    """A token for each byte, and a few for pairs."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "t"), ("h", "e"), ("Ã", "©"), ("ð", "Ł"), ("a", "b")]
    vocab = {token: i for i, token in enumerate([*alphabet, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def metaspace() -> Tokenizer:
    """Words that carry their space in front, which a decoder drops from the first one."""
    tokenizer = Tokenizer(models.WordLevel({"▁the": 0, "▁sea": 1, "s": 2, "▁": 3, "?": 4}, "?"))
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


BYTES, WORDS = byte_level(), metaspace()


class Letters:
    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


def read(detokenizer: Detokenizer, ids: list[int]) -> tuple[list[str], str | None]:
    """The pieces shown, token by token and at the end, and the stop string."""
    pieces = []
    for token_id in ids:
        text, stop = detokenizer.push(token_id)
        pieces.append(text)
        if stop is not None:
            return pieces, stop
    return [*pieces, detokenizer.finish().text], None


@given(st.text())
def test_pieces_of_any_text_make_the_text_and_are_whole_characters(text: str) -> None:
    pieces, _ = read(Detokenizer(BYTES), BYTES.encode(text).ids)
    assert "".join(pieces) == text
    if REPLACEMENT not in text:
        assert REPLACEMENT not in "".join(pieces)


@given(st.lists(st.integers(0, BYTES.get_vocab_size() - 1)))
def test_pieces_of_any_tokens_make_what_they_decode_to(ids: list[int]) -> None:
    pieces, _ = read(Detokenizer(BYTES), ids)
    assert "".join(pieces) == BYTES.decode(ids)


@given(st.lists(st.integers(0, 4)))
def test_spaces_between_words_survive(ids: list[int]) -> None:
    pieces, _ = read(Detokenizer(WORDS), ids)
    assert "".join(pieces) == WORDS.decode(ids)


def test_a_character_of_four_tokens_comes_whole() -> None:
    ids = BYTES.encode("a\N{GRINNING FACE}b").ids
    pieces, _ = read(Detokenizer(BYTES), ids)
    assert [piece for piece in pieces if piece] == ["a", "\N{GRINNING FACE}", "b"]


def test_a_character_cut_off_by_the_end_shows_as_such() -> None:
    ids = BYTES.encode("é").ids + BYTES.encode("\N{GRINNING FACE}").ids[:1]
    assert "".join(read(Detokenizer(BYTES), ids)[0]) == "é" + REPLACEMENT


def first_stop(text: str, stop: tuple[str, ...]) -> tuple[str, str | None]:
    """The text before the stop string that is complete first; of several, the one that began first."""
    for end in range(1, len(text) + 1):
        found = [(text[:end].find(s), s) for s in stop if s in text[:end]]
        if found:
            at, name = min(found)
            return text[:at], name
    return text, None


short = st.text("ab", min_size=1, max_size=4)


@given(st.text("abc", max_size=12), st.lists(short, max_size=4, unique=True))
def test_text_ends_before_the_first_stop_string(text: str, stop: list[str]) -> None:
    pieces, name = read(Detokenizer(Letters(), tuple(stop)), list(map(ord, text)))
    assert ("".join(pieces), name) == first_stop(text, tuple(stop))


@given(st.text("ab", max_size=12), st.lists(short, min_size=1, max_size=4, unique=True))
def test_nothing_that_may_become_a_stop_string_is_shown(text: str, stop: list[str]) -> None:
    detokenizer, shown = Detokenizer(Letters(), tuple(stop)), ""
    for i, letter in enumerate(text, 1):
        piece, name = detokenizer.push(ord(letter))
        shown += piece
        if name is not None:
            return
        held = text[len(shown) : i]
        assert text.startswith(shown)
        assert not held or any(s.startswith(held) for s in stop)
        longest = max(n for s in stop for n in range(len(s)) if text[:i].endswith(s[:n]))
        assert len(held) == longest


@pytest.mark.parametrize("decoder", [BYTES, WORDS])
def test_the_last_piece_is_empty_when_nothing_is_held(decoder: Tokenizer) -> None:
    detokenizer = Detokenizer(decoder)
    detokenizer.push(1)
    assert detokenizer.finish().text == ""
