"""An adapter's tokenizer.json: the base model's, and which tokens it adds.

The file is never given to a tokenizer. What it adds is taken out of it, to be added to the base model's.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from loraplex_adapters.added_tokens import AddedToken, AddedTokens
from loraplex_adapters.errors import AdapterTooLarge, BadTokenizer, ForeignTokenizer, TokenIdGap
from loraplex_adapters.folder import GENERATION_NAME, TOKENIZER_CONFIG_NAME, TOKENIZER_NAME

FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
VOCABULARY = ("type", "vocab", "merges")
PIECES = ("normalizer", "pre_tokenizer", "decoder")  # without which the same text is other tokens
NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")
DEFAULTS = ("use_regex", "trim_offsets")  # true where an older release does not write them
MAX_TOKENS = 4096
MAX_TOKEN_CHARS = 256
MAX_TEXT_BYTES = 1 << 17  # of them all, times their runs: up to 0.3 s of a tokenizer's making
SPARE_BYTES = 1 << 20  # by which a small file may be larger than four times the base model's

Json = Mapping[str, Any]


class Judged(NamedTuple):
    """None: the vocabulary is the base model's."""

    tokens: AddedTokens | None
    warnings: tuple[str, ...]


def judge_tokenizer(files: Mapping[str, bytes], base_path: Path | None) -> Judged:
    """What an adapter's files say of its tokens, or the reason why they cannot be served."""
    raw = files.get(TOKENIZER_NAME)
    if raw is None:
        return Judged(None, ())
    if base_path is None:
        return Judged(None, (f"{TOKENIZER_NAME} is ignored: the base model has none",))
    base_raw = base_path.read_bytes()
    if raw == base_raw:  # as it mostly is, and large: parsing it keeps every other thread waiting
        return Judged(None, ())
    limit = 4 * len(base_raw) + SPARE_BYTES
    if len(raw) > limit:
        raise AdapterTooLarge(
            f"{TOKENIZER_NAME} has {len(raw)} bytes, more than {limit}",
            file=TOKENIZER_NAME,
            num_bytes=len(raw),
            limit=limit,
        )
    own, base = _parse(raw, TOKENIZER_NAME), _parse(base_raw, TOKENIZER_NAME)
    models = (_spelled_model(own["model"]), _spelled_model(base["model"]))
    _check_vocabulary(*models)
    tokens, warnings = _added(own, base)
    different = [key for key in PIECES if not _is_same(own.get(key), base.get(key))]
    different += _options(*models)
    if different and tokens:
        raise ForeignTokenizer(
            f"the {different[0]} of {TOKENIZER_NAME} is not the base model's", key=different[0]
        )
    if not _is_same(own.get("post_processor"), base.get("post_processor")):
        different.append("post_processor")
    warnings += [
        f"the tokenizer's {key} is not the base model's, which is used" for key in different
    ]
    if not tokens:
        return Judged(None, tuple(warnings))
    known = _ids(base) | {token.content: token.id for token in tokens}
    named = _named(files, known)
    eos = _eos_token_ids(files, known, named.get("eos_token"))
    return Judged(AddedTokens(tuple(tokens), eos, tuple(sorted(named.items()))), tuple(warnings))


def _parse(raw: bytes, name: str) -> dict[str, Any]:
    try:
        content = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise BadTokenizer(f"{name} is not JSON: {error}", file=name) from None
    if not isinstance(content, dict):
        raise BadTokenizer(f"{name} is not a JSON object", file=name)
    if name == TOKENIZER_NAME:
        model = content.get("model")
        if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict | list):
            raise BadTokenizer(f"{name} has no model with a vocabulary", file=name, key="model")
    return content


def _check_vocabulary(found: Json, expected: Json) -> None:
    for key in VOCABULARY:
        if found.get(key) != expected.get(key):
            raise ForeignTokenizer(
                f"model.{key} of {TOKENIZER_NAME} is not the base model's", key=f"model.{key}"
            )


def _options(found: Json, expected: Json) -> list[str]:
    """The model's keys beside its vocabulary that differ."""
    keys = sorted((found.keys() | expected.keys()) - set(VOCABULARY))
    return [f"model.{key}" for key in keys if found.get(key) != expected.get(key)]


def _spelled_model(model: Json) -> Json:
    """As any release of `tokenizers` writes it: merges were one text each, old files name no type."""
    said = {key: value for key, value in model.items() if not _says_nothing(value)}
    merges = said.get("merges")
    if isinstance(merges, list):
        said["merges"] = [m.split(" ", 1) if isinstance(m, str) else m for m in merges]
    return {"type": "BPE", **said}


def _is_same(piece: object, other: object) -> bool:
    try:
        return _spelled(piece) == _spelled(other)
    except RecursionError:  # nested as no piece is
        return False


def _spelled(piece: object) -> object:
    if isinstance(piece, dict):
        return {
            key: _spelled(value)
            for key, value in piece.items()
            if not (_says_nothing(value) or (key in DEFAULTS and value is True))
        }
    return [_spelled(each) for each in piece] if isinstance(piece, list) else piece


def _says_nothing(value: object) -> bool:
    return value is None or value is False or value == ""


def _ids(content: Json) -> dict[str, int]:
    """Every token of a base model by its text."""
    vocab = content["model"]["vocab"]
    known = vocab if isinstance(vocab, dict) else {entry[0]: i for i, entry in enumerate(vocab)}
    return {**known, **{token.content: token.id for token in _entries(content).values()}}


def _entries(content: Json) -> dict[int, AddedToken]:
    found = content.get("added_tokens") or []
    if not isinstance(found, list):
        raise _bad("added_tokens is not a list")
    tokens: dict[int, AddedToken] = {}
    for entry in found:
        token = _token(entry)
        if token.id in tokens:
            raise _bad(f"the token id {token.id} occurs twice")
        tokens[token.id] = token
    if len({token.content for token in tokens.values()}) != len(tokens):
        raise _bad("a token's text occurs twice")
    return tokens


def _token(entry: object) -> AddedToken:
    if not isinstance(entry, dict) or entry.keys() != {"id", "content", *FLAGS}:
        raise _bad("an entry of added_tokens has other keys than an added token")
    number, content = entry["id"], entry["content"]
    if type(number) is not int or not 0 <= number < 1 << 31:
        raise _bad("the id of an added token is no token id")
    if not isinstance(content, str) or not content:
        raise _bad(f"the token {number} has no text")
    flags = {flag: entry[flag] for flag in FLAGS}
    if not all(type(flag) is bool for flag in flags.values()):
        raise _bad(f"a flag of the token {number} is neither true nor false")
    return AddedToken(number, content, **flags)


def _added(own: Json, base: Json) -> tuple[list[AddedToken], list[str]]:
    """In the order of the ids: new ones follow the base model's, others stand in its vocabulary."""
    entries, own_entries, ids = _entries(base), _entries(own), _ids(base)
    taken = set(ids.values())
    added, warnings = [], []
    for token in sorted(own_entries.values(), key=lambda token: token.id):
        if token.id in entries and entries[token.id].content == token.content:
            if entries[token.id] != token:
                warnings.append(f"the flags of {token.content[:64]!r} are the base model's")
        elif ids.get(token.content, token.id) != token.id or (
            token.content not in ids and token.id in taken
        ):
            raise ForeignTokenizer(
                f"{token.content[:64]!r} is not the base model's token {token.id}",
                key="added_tokens",
                token=token.id,
            )
        else:
            added.append(_checked(token))
    if len(added) > MAX_TOKENS:
        raise AdapterTooLarge(
            f"{len(added)} tokens are added, more than {MAX_TOKENS}", limit=MAX_TOKENS
        )
    _check_work(added)
    new = [token.id for token in added if token.id not in taken]
    first = _next_id(entries, base)
    if new and new != list(range(first, first + len(new))):
        raise TokenIdGap(
            f"new tokens are numbered from {first} without a gap, these are {new[:8]}",
            expected=first,
            found=new[:8],
        )
    return added, warnings


def _check_work(added: Sequence[AddedToken]) -> None:
    """Bound the time of `extended`, which looks at all texts again for each run of special tokens or
    others, and lets nobody else run meanwhile."""
    runs = 1 + sum(one.special != other.special for one, other in pairwise(added))
    num_bytes = sum(len(token.content.encode()) for token in added)
    if runs * num_bytes > MAX_TEXT_BYTES:
        raise AdapterTooLarge(
            f"the added tokens have {num_bytes} bytes of text, and are special or not in {runs} runs: "
            f"more than {MAX_TEXT_BYTES} bytes together",
            file=TOKENIZER_NAME,
            num_bytes=runs * num_bytes,
            limit=MAX_TEXT_BYTES,
        )


def _checked(token: AddedToken) -> AddedToken:
    if len(token.content) > MAX_TOKEN_CHARS:
        raise _bad(f"the token {token.id} is longer than {MAX_TOKEN_CHARS} characters")
    try:
        token.content.encode()
    except UnicodeEncodeError:  # JSON can spell half a surrogate pair
        raise _bad(f"the token {token.id} is not valid Unicode") from None
    if "\0" in token.content:
        raise _bad(f"the token {token.id} holds NUL")  # PostgreSQL keeps no such report
    return token


def _next_id(entries: Mapping[int, AddedToken], base: Json) -> int:
    """Where the `tokenizers` library goes on counting."""
    return max(len(base["model"]["vocab"]), *(number + 1 for number in entries), 0)


def _named(files: Mapping[str, bytes], known: Mapping[str, int]) -> dict[str, str]:
    """The tokens that tokenizer_config.json gives a name."""
    if TOKENIZER_CONFIG_NAME not in files:
        return {}
    config = _parse(files[TOKENIZER_CONFIG_NAME], TOKENIZER_CONFIG_NAME)
    named = {}
    for name in NAMES:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str) and text in known:
            named[name] = text
        elif name == "eos_token" and text is not None:
            raise BadTokenizer(
                f"the {name} of {TOKENIZER_CONFIG_NAME} is not in the vocabulary",
                file=TOKENIZER_CONFIG_NAME,
                key=name,
            )
    return named


def _eos_token_ids(
    files: Mapping[str, bytes], known: Mapping[str, int], eos_token: str | None
) -> tuple[int, ...]:
    """Of tokenizer_config.json and generation_config.json together."""
    found = set() if eos_token is None else {known[eos_token]}
    if GENERATION_NAME in files:
        value = _parse(files[GENERATION_NAME], GENERATION_NAME).get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(i) is int for i in ids) or not set(ids) <= set(known.values()):
            raise BadTokenizer(
                f"the eos_token_id of {GENERATION_NAME} is not in the vocabulary",
                file=GENERATION_NAME,
                key="eos_token_id",
            )
        found |= set(ids)
    return tuple(sorted(found))


def _bad(message: str) -> BadTokenizer:
    return BadTokenizer(f"{TOKENIZER_NAME}: {message}", file=TOKENIZER_NAME, key="added_tokens")
