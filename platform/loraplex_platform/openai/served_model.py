"""The base model as the API sees it: an id, a tokenizer, a chat template."""

import copy
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from tokenizers import Tokenizer

from loraplex_adapters.added_tokens import AddedTokens
from loraplex_adapters.errors import BadTokenizer, CorruptVersion, MissingFile, UnknownVersion
from loraplex_adapters.extended_tokenizer import extended
from loraplex_adapters.known_tokens import KnownTokens
from loraplex_adapters.store import AdapterStore
from loraplex_engine.errors import UnknownAdapter
from loraplex_platform.kit.chat_template import TEMPLATE_FAULTS, ChatTemplate
from loraplex_platform.kit.errors import InvalidRequest

TENANTS_TEMPLATES = 64  # kept compiled
KEPT_VERSIONS = 256  # with tokens of their own


def _bounded(source: str) -> ChatTemplate:
    return ChatTemplate(source, is_bounded=True)


class ServedModel:
    """Reads a Hugging Face folder; loads no weights."""

    def __init__(
        self,
        model_id: str,
        tokenizer: Tokenizer,
        chat_template: str | None,
        special_tokens: Mapping[str, str],
    ) -> None:
        self.id = model_id
        self.vocab_size = tokenizer.get_vocab_size(with_added_tokens=True)
        longest = max(map(len, tokenizer.get_vocab(with_added_tokens=True)))
        # Composition (NFC) may make one character of three.
        self._token_chars = longest if tokenizer.normalizer is None else 3 * longest
        self._tokenizer = tokenizer
        self._special_tokens = special_tokens
        self._template = None
        if chat_template is not None:
            self._template = ChatTemplate(chat_template)
        self._tenants_template = lru_cache(TENANTS_TEMPLATES)(_bounded)

    @classmethod
    def load(cls, folder: Path, model_id: str | None = None) -> Self:
        """The id is the folder's name unless one is given."""
        config_path, template_path = (
            folder / "tokenizer_config.json",
            folder / "chat_template.jinja",
        )
        config = json.loads(config_path.read_text()) if config_path.exists() else {}
        template = config.get("chat_template")
        if isinstance(template, list):  # several by name
            template = next((t["template"] for t in template if t["name"] == "default"), None)
        if template_path.exists():
            template = template_path.read_text()
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return cls(model_id or folder.resolve().name, tokenizer, template, _special_tokens(config))

    def with_added(self, added: AddedTokens) -> Self:
        """The model as a version with tokens of its own has it; raises BadTokenizer.

        The chat template and the base model's vocabulary are shared.
        """
        own = copy.copy(self)
        own._tokenizer = extended(self._tokenizer, added)
        own.vocab_size = max(self.vocab_size, added.stop_id)
        longest = max(map(len, added.texts))
        own._token_chars = max(
            self._token_chars, longest if self._tokenizer.normalizer is None else 3 * longest
        )
        own._special_tokens = {**self._special_tokens, **dict(added.named)}
        return own

    def render(self, messages: Sequence[Mapping[str, Any]], own: str | None = None) -> str:
        """The prompt's text, up to where the assistant speaks; `own` is a tenant's chat template."""
        template = self._template if own is None else self._tenants_template(own)
        if template is None:
            raise InvalidRequest(f"The model '{self.id}' has no chat template.", param="model")
        try:
            return template.render(messages, self._special_tokens)
        except TEMPLATE_FAULTS as error:
            raise InvalidRequest(
                f"The chat template refuses these messages: {error}", param="messages"
            ) from error

    def fewest_tokens(self, num_chars: int) -> int:
        """How many tokens a text of this length makes at the least, told without reading it."""
        return -(-num_chars // self._token_chars)

    def encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def token_text(self, token_id: int) -> str:
        return self._tokenizer.decode([token_id], skip_special_tokens=False)

    def token_bytes(self, token_id: int) -> bytes:
        """The token's own bytes, which need not be whole characters."""
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if len(token) == 6 and token.startswith("<0x"):  # SentencePiece's byte fallback
            return bytes([int(token[3:5], 16)])
        if all(char in BYTE_OF_CHAR for char in token):
            return bytes(BYTE_OF_CHAR[char] for char in token)
        return self.token_text(token_id).encode()


class ServedModels:
    """The base model as each adapter version has it; versions with tokens of their own differ."""

    def __init__(self, base: ServedModel, store: AdapterStore) -> None:
        self.base = base
        self._tokens = KnownTokens(store)
        self._of = lru_cache(KEPT_VERSIONS)(self._with_added)

    def of(self, version: str | None) -> ServedModel:
        """The base model also for a version that is not there, as the engine will say.

        Raises UnknownAdapter for one that cannot be read, or whose tokens no longer fit the base model's.
        """
        if version is None:
            return self.base
        try:
            return self.base if self._tokens.of(version) is None else self._of(version)
        except (UnknownVersion, MissingFile):
            return self.base
        except (BadTokenizer, CorruptVersion, OSError) as error:
            raise UnknownAdapter(f"the adapter cannot be read: {error}") from error

    def _with_added(self, version: str) -> ServedModel:
        added = self._tokens.of(version)
        assert added is not None
        return self.base.with_added(added)


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    found = {name: config.get(name) for name in names}
    return {
        name: token["content"] if isinstance(token, dict) else token
        for name, token in found.items()
        if token is not None
    }


def _byte_of_char() -> dict[str, int]:
    """The byte-level alphabet of GPT-2: printable Latin-1 stands for itself."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    pairs = [(chr(b), b) for b in plain] + [(chr(256 + i), b) for i, b in enumerate(others)]
    return dict(pairs)


BYTE_OF_CHAR = _byte_of_char()
