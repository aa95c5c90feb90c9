"""The `tokenizers` library as the engine uses it: the way back from ids to text."""

from collections import OrderedDict
from collections.abc import Sequence

from tokenizers import Tokenizer

from loraplex_adapters.added_tokens import AddedTokens
from loraplex_adapters.extended_tokenizer import extended
from loraplex_engine.detokenizer import TokenDecoder

KEPT = 256  # tokenizers of versions


class ModelText:
    """The base model's tokenizer, and those of versions that add tokens to it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._of: OrderedDict[str, VersionText] = OrderedDict()

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(ids)
        return text

    def of_version(self, version: str, added: AddedTokens) -> TokenDecoder:
        found = self._of.get(version)
        if found is None or found.added is not added:
            found = self._of[version] = VersionText(self._tokenizer, added)
        self._of.move_to_end(version)
        if len(self._of) > KEPT:
            self._of.popitem(last=False)
        return found


class VersionText:
    """Made with its first token, so that what goes wrong there ends that request alone."""

    def __init__(self, base: Tokenizer, added: AddedTokens) -> None:
        self.added = added
        self._base = base
        self._tokenizer: Tokenizer | None = None

    def decode(self, ids: Sequence[int]) -> str:
        if self._tokenizer is None:
            self._tokenizer = extended(self._base, self.added)
        text: str = self._tokenizer.decode(ids)
        return text
