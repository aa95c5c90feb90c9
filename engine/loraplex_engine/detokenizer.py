"""From token ids to text, a token at a time: whole characters only, and nothing past a stop string."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from loraplex_adapters.added_tokens import AddedTokens

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TokenDecoder(Protocol):
    """A tokenizer's way back; `tokenizers.Tokenizer` fits as it is."""

    def decode(self, ids: Sequence[int]) -> str: ...


class BaseDecoder(TokenDecoder, Protocol):
    """The base model's, which knows of versions with tokens of their own."""

    def of_version(self, version: str, added: AddedTokens) -> TokenDecoder: ...


class Text(NamedTuple):
    """Text that may be shown now, and the stop string that ended it."""

    text: str
    stop: str | None = None


class Detokenizer:
    """The text of one growing sequence.

    A token's text depends on its neighbours (spaces, multi-byte characters), so a window of the last
    shown tokens is decoded with and without the new ones, and the difference is what is new.
    """

    def __init__(self, decoder: TokenDecoder, stop: tuple[str, ...] = ()) -> None:
        self._decoder = decoder
        self._stop = stop
        self._ids: list[int] = []
        self._window = 0  # where the window starts
        self._shown = 0  # tokens whose text is known in full
        self._shown_text = ""  # of the window, up to _shown
        self._held = ""  # known text that may be the beginning of a stop string

    def push(self, token_id: int, *, may_stop: bool = True) -> Text:
        """The text that this token makes certain; `may_stop` is False below min_tokens."""
        self._ids.append(token_id)
        text = self._decoder.decode(self._ids[self._window :])
        if text.endswith(REPLACEMENT):
            return Text("")
        new = text[len(self._shown_text) :]
        self._window, self._shown = self._shown, len(self._ids)
        self._shown_text = self._decoder.decode(self._ids[self._window :])
        if not may_stop:
            return Text(new)
        return self._until_stop(self._held + new)

    def finish(self) -> Text:
        """What was held back, once no token follows. A character cut off in the middle shows as such."""
        text = self._decoder.decode(self._ids[self._window :])
        rest = self._held + text[len(self._shown_text) :]
        self._window = self._shown = len(self._ids)
        self._shown_text = self._held = ""
        return Text(rest)

    def _until_stop(self, text: str) -> Text:
        found = [(at, stop) for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            at, stop = min(found)
            self._held = ""
            return Text(text[:at], stop)
        num_held = max((_overlap(text, stop) for stop in self._stop), default=0)
        cut = len(text) - num_held
        self._held = text[cut:]
        return Text(text[:cut])


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
