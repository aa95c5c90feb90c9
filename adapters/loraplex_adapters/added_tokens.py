"""Tokens that an adapter has beyond the base model's vocabulary: ids, texts and flags."""

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class AddedToken:
    """One of a tokenizer.json's `added_tokens`; the flags are those of the `tokenizers` library."""

    id: int
    content: str
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool
    special: bool


@dataclass(frozen=True, slots=True)
class AddedTokens:
    """What a version's vocabulary has beside the base model's, in the order of the ids."""

    tokens: tuple[AddedToken, ...]
    eos_token_ids: tuple[int, ...] = ()  # beside the base model's
    named: tuple[tuple[str, str], ...] = ()  # what chat templates call `eos_token` and the like

    @property
    def stop_id(self) -> int:
        """One past the last id."""
        return self.tokens[-1].id + 1

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(token.content for token in self.tokens)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> "AddedTokens":
        """Raises ValueError, KeyError or TypeError for what `to_json` has not written."""
        content = json.loads(text)
        if not content["tokens"]:
            raise ValueError("there are no tokens")
        return AddedTokens(
            tuple(AddedToken(**token) for token in content["tokens"]),
            tuple(content["eos_token_ids"]),
            tuple((name, token) for name, token in content["named"]),
        )
