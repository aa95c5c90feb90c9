"""An adapter's tokenizer.json: judged against the base model's, and part of the version."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.adapters.folders import BASE, HIDDEN, lora_tensors, safetensors_bytes, write_adapter
from tests.added_tokens import DONE, NOTE, TOKENS, TOOL, add_tokens
from tests.platform_stand import tiny_model
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from loraplex_adapters import errors
from loraplex_adapters.canonical import CANONICAL_NAME
from loraplex_adapters.errors import AdapterError
from loraplex_adapters.extended_tokenizer import extended
from loraplex_adapters.known_tokens import KnownTokens
from loraplex_adapters.layout import EMBEDDING, HEAD, BaseModel, ModuleShape
from loraplex_adapters.manifest import Limits
from loraplex_adapters.store import AdapterStore, StoredAdapter
from loraplex_adapters.tokenizer_file import MAX_TOKEN_CHARS, MAX_TOKENS, judge_tokenizer

NUM_KNOWN = 259  # tokens of the tiny model
LIMITS = Limits(max_rank=8)
Json = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("base") / "tiny")


def base_of(model: Path, num_rows: int = NUM_KNOWN, *, is_tied: bool = False) -> BaseModel:
    modules = {
        **BASE.modules,
        EMBEDDING: ModuleShape(num_rows, HIDDEN, "embedding"),
        HEAD: ModuleShape(HIDDEN, num_rows),
    }
    return BaseModel("tiny", modules, is_tied, model / "tokenizer.json")


def write(folder: Path, shapes: Shapes | None = None, **config: Any) -> Path:
    """A folder with LoRA of projections, and zeros in these shapes beside them."""
    entries = {n: ("F32", t.shape, t.tobytes()) for n, t in lora_tensors().items()}
    for name, shape in (shapes or {}).items():
        size = 4
        for length in shape:
            size *= length
        entries[f"base_model.model.{name}"] = ("F32", shape, bytes(size))
    return write_adapter(folder, safetensors_bytes(entries), **config)


def whole(num_rows: int) -> Shapes:
    return {
        "model.embed_tokens.weight": (num_rows, HIDDEN),
        "lm_head.weight": (num_rows, HIDDEN),
    }


def put(folder: Path, base: BaseModel, store: Path) -> StoredAdapter:
    return AdapterStore(store).put(folder, base=base, limits=LIMITS)


def test_added_tokens_are_part_of_the_version(model: Path, tmp_path: Path) -> None:
    folder, base = write(tmp_path / "a", whole(NUM_KNOWN + 3)), base_of(model)
    add_tokens(model, folder, *TOKENS, eos_token="<|done|>")
    stored = put(folder, base, tmp_path / "s")

    added = AdapterStore(tmp_path / "s").added_tokens(stored.version)

    assert added is not None
    assert [token.id for token in added.tokens] == [259, 260, 261]
    assert added.texts == stored.report.added_tokens == ("<tool>", "<|done|>", "<note>")
    assert [token.special for token in added.tokens] == [False, True, False]
    assert added.tokens[2].lstrip
    assert (added.eos_token_ids, added.named) == ((260,), (("eos_token", "<|done|>"),))
    assert stored.report.warnings == ()
    add_tokens(model, folder, TOOL, NOTE, DONE, eos_token="<|done|>")
    other = put(folder, base, tmp_path / "s")
    assert other.version != stored.version


def test_tokens_may_lie_in_spare_rows(model: Path, tmp_path: Path) -> None:
    folder = write(tmp_path / "a")
    add_tokens(model, folder, TOOL, DONE)
    (folder / "generation_config.json").write_text('{"eos_token_id": [260, 2]}')
    version = put(folder, base_of(model, 264), tmp_path / "s").version
    added = KnownTokens(AdapterStore(tmp_path / "s")).of(version)
    assert added is not None
    assert (added.stop_id, added.eos_token_ids) == (261, (2, 260))


def test_a_token_of_the_base_may_become_an_added_one(model: Path, tmp_path: Path) -> None:
    """It keeps its id, and is found whole in any text."""
    folder = write(tmp_path / "a")
    add_tokens(model, folder, AddedToken("a", special=True))
    version = put(folder, base_of(model), tmp_path / "s").version
    added = AdapterStore(tmp_path / "s").added_tokens(version)
    assert added is not None
    assert [(token.id, token.content) for token in added.tokens] == [(3 + ord("a"), "a")]


def changed(change: Callable[[Json], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "tokenizer.json"
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return apply


SAME: dict[str, Callable[[Json], object]] = {
    "untouched": lambda t: None,
    "merges as texts": lambda t: t["model"].update(merges=[" ".join(m) for m in t["model"]["merges"]]),
    "keys of today left out": lambda t: [t["model"].pop(k) for k in ("ignore_merges", "dropout")],
    "keys of tomorrow": lambda t: t["model"].update(future=None),
    "a release that split by itself": lambda t: t["pre_tokenizer"].pop("use_regex"),
    "no type": lambda t: t["model"].pop("type"),
    "truncation": lambda t: t.update(truncation={"max_length": 5}),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_the_base_models_own_tokenizer_changes_nothing(
    name: str, model: Path, tmp_path: Path
) -> None:
    base = base_of(model)
    plain = put(write(tmp_path / "plain"), base, tmp_path / "s")
    folder = write(tmp_path / "a")
    add_tokens(model, folder)
    changed(SAME[name])(folder)
    assert put(folder, base, tmp_path / "s") == plain


def test_pieces_that_differ_without_new_tokens_are_warnings(model: Path, tmp_path: Path) -> None:
    folder = write(tmp_path / "a")
    add_tokens(model, folder)
    changed(lambda t: t.update(decoder=None, post_processor={"type": "ByteLevel"}))(folder)
    warnings = put(folder, base_of(model), tmp_path / "s").report.warnings
    assert warnings == tuple(
        f"the tokenizer's {key} is not the base model's, which is used"
        for key in ("decoder", "post_processor")
    )


def token(number: int, content: str, **flags: object) -> Json:
    given = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": number, "content": content, **given, **flags}


def adding(*tokens: object) -> Callable[[Path], None]:
    return changed(lambda t: t["added_tokens"].extend(tokens))


def raw(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: void((folder / name).write_bytes(content))


def void(_: object) -> None:
    return None


def nested(depth: int) -> Json:
    piece: Json = {}
    for _ in range(depth):
        piece = {"type": "Sequence", "decoders": piece}
    return piece


NEW = token(259, "<new>")
ROWS = whole(260)
TOKENIZERS: dict[str, tuple[Callable[[Path], None], Shapes, type[AdapterError]]] = {
    "not JSON": (raw("tokenizer.json", b"{"), {}, errors.BadTokenizer),
    "deep JSON": (raw("tokenizer.json", b"[" * 100_000), {}, errors.BadTokenizer),
    "a list": (raw("tokenizer.json", b"[]"), {}, errors.BadTokenizer),
    "no model": (raw("tokenizer.json", b'{"added_tokens": []}'), {}, errors.BadTokenizer),
    "git lfs": (raw("tokenizer.json", b"version https://git-lfs"), {}, errors.LfsPointer),
    "far larger than the base's": (raw("tokenizer.json", b" " * (2 << 20)), {}, errors.AdapterTooLarge),
    "added tokens no list": (changed(lambda t: t.update(added_tokens={"a": 1})), {}, errors.BadTokenizer),
    "token no object": (adding("x"), {}, errors.BadTokenizer),
    "token without flags": (adding({"id": 259, "content": "x"}), {}, errors.BadTokenizer),
    "flag no boolean": (adding(token(259, "x", special=1)), {}, errors.BadTokenizer),
    "negative id": (adding(token(-1, "x")), {}, errors.BadTokenizer),
    "id no number": (adding(token(True, "x")), {}, errors.BadTokenizer),
    "empty text": (adding(token(259, "")), {}, errors.BadTokenizer),
    "half a character": (adding(token(259, "\ud800")), ROWS, errors.BadTokenizer),
    "NUL": (adding(token(259, "a\0")), ROWS, errors.BadTokenizer),
    "endless text": (adding(token(259, "x" * (MAX_TOKEN_CHARS + 1))), ROWS, errors.BadTokenizer),
    "one id twice": (adding(NEW, token(259, "y")), {}, errors.BadTokenizer),
    "one text twice": (adding(NEW, token(260, "<new>")), {}, errors.BadTokenizer),
    "too many": (
        adding(*(token(259 + i, f"<{i}>") for i in range(MAX_TOKENS + 1))), {}, errors.AdapterTooLarge,
    ),
    "too much text": (
        adding(*(token(259 + i, f"<{i}>".ljust(65)) for i in range(2048))), {}, errors.AdapterTooLarge,
    ),
    "special by turns": (
        adding(*(token(259 + i, f"<{i}>", special=bool(i % 2)) for i in range(200))),
        {}, errors.AdapterTooLarge,
    ),
    "another vocabulary": (
        changed(lambda t: t["model"]["vocab"].update(a=100, b=99)), {}, errors.ForeignTokenizer,
    ),
    "a larger vocabulary": (
        changed(lambda t: t["model"]["vocab"].update({"ab": 259})), {}, errors.ForeignTokenizer,
    ),
    "other merges": (
        changed(lambda t: t["model"].update(merges=[["a", "b"]])), {}, errors.ForeignTokenizer,
    ),
    "another kind": (changed(lambda t: t["model"].update(type="WordPiece")), {}, errors.ForeignTokenizer),
    "another splitting": (
        changed(lambda t: (t.update(pre_tokenizer=None), t["added_tokens"].append(NEW))),
        ROWS, errors.ForeignTokenizer,
    ),
    "a piece that is nested without end": (
        changed(lambda t: (t.update(decoder=nested(700)), t["added_tokens"].append(NEW))),
        ROWS, errors.ForeignTokenizer,
    ),
    "another option": (
        changed(lambda t: (t["model"].update(byte_fallback=True), t["added_tokens"].append(NEW))),
        ROWS, errors.ForeignTokenizer,
    ),
    "a base token renamed": (
        changed(lambda t: t["added_tokens"][1].update(content="<|renamed|>")), {}, errors.ForeignTokenizer,
    ),
    "a base token moved": (adding(token(259, "a")), {}, errors.ForeignTokenizer),
    "a gap before": (adding(token(260, "<x>")), whole(261), errors.TokenIdGap),
    "a gap between": (adding(NEW, token(261, "<x>")), whole(262), errors.TokenIdGap),
    "no rows": (adding(NEW), {}, errors.TokensWithoutRows),
    "rows of the embedding alone": (
        adding(NEW), {"model.embed_tokens.weight": (260, HIDDEN)}, errors.TokensWithoutRows,
    ),
    "rows of the head alone": (adding(NEW), {"lm_head.weight": (260, HIDDEN)}, errors.TokensWithoutRows),
    "fewer rows": (adding(NEW, token(260, "<x>")), whole(260), errors.TokensWithoutRows),
    "the base's rows alone": (adding(NEW), whole(259), errors.TokensWithoutRows),
    "LoRA of rows that are not there": (
        adding(NEW),
        {
            "lm_head.lora_A.weight": (4, HIDDEN),
            "lm_head.lora_B.weight": (260, 4),
            "model.embed_tokens.weight": (260, HIDDEN),
        },
        errors.TokensWithoutRows,
    ),
    "more rows": (adding(NEW), whole(264), errors.RowsWithoutTokens),
    "more rows of the head": (
        adding(NEW),
        {"model.embed_tokens.weight": (260, HIDDEN), "lm_head.weight": (264, HIDDEN)},
        errors.RowsWithoutTokens,
    ),
    "rows and no tokens": (changed(lambda t: None), whole(260), errors.UnsupportedFeature),
    "rows of another width": (adding(NEW), whole(260) | {"lm_head.weight": (260, 17)}, errors.ShapeMismatch),
    "nothing but what was there before": (
        adding(NEW), {"lm_head.original_module.weight": (260, HIDDEN)}, errors.TokensWithoutRows,
    ),
    "an end that is not there": (
        lambda f: (adding(NEW)(f), raw("tokenizer_config.json", b'{"eos_token": "<end>"}')(f))[0],
        ROWS, errors.BadTokenizer,
    ),
    "an end beyond the vocabulary": (
        lambda f: (adding(NEW)(f), raw("generation_config.json", b'{"eos_token_id": 260}')(f))[0],
        ROWS, errors.BadTokenizer,
    ),
    "generation_config no JSON": (
        lambda f: (adding(NEW)(f), raw("generation_config.json", b"x")(f))[0], ROWS, errors.BadTokenizer,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_that_does_not_fit_is_refused_with_its_own_code(
    name: str, model: Path, tmp_path: Path
) -> None:
    spoil, shapes, expected = TOKENIZERS[name]
    folder = write(tmp_path / "a", shapes)
    add_tokens(model, folder)
    spoil(folder)
    with pytest.raises(AdapterError) as caught:
        put(folder, base_of(model), tmp_path / "s")
    assert type(caught.value) is expected
    assert not list(AdapterStore(tmp_path / "s").versions())


@pytest.mark.parametrize("name", ["another vocabulary", "another splitting", "another option"])
def test_what_is_foreign_is_named(name: str, model: Path, tmp_path: Path) -> None:
    spoil, shapes, _ = TOKENIZERS[name]
    folder = write(tmp_path / "a", shapes)
    add_tokens(model, folder)
    spoil(folder)
    with pytest.raises(errors.ForeignTokenizer) as caught:
        put(folder, base_of(model), tmp_path / "s")
    keys = {
        "another vocabulary": "model.vocab",
        "another splitting": "pre_tokenizer",
        "another option": "model.byte_fallback",
    }
    assert caught.value.data["key"] == keys[name]


def test_a_tied_head_has_the_embeddings_rows(model: Path, tmp_path: Path) -> None:
    """What PEFT saves of new tokens that are trained, of a base layer, and beside a module's own copy."""
    base = base_of(model, is_tied=True)
    rows = {"model.embed_tokens.token_adapter.trainable_tokens_delta": (1, HIDDEN)}
    layer = {
        f"{module}.token_adapter.base_layer.weight": (260, HIDDEN)
        for module in ("model.embed_tokens", "lm_head")
    } | {"lm_head.token_adapter.trainable_tokens_delta": (1, HIDDEN)}
    copies = {
        f"model.embed_tokens.{part}weight": (260, HIDDEN)
        for part in ("", "original_module.", "modules_to_save.")
    }
    for i, shapes in enumerate((rows, rows | layer, copies)):
        config: Json = {"trainable_token_indices": [259]}
        if shapes is copies:
            config = {"modules_to_save": ["embed_tokens"]}
        folder = write(tmp_path / f"a{i}", shapes, **config)
        add_tokens(model, folder)
        adding(NEW)(folder)
        report = put(folder, base, tmp_path / "s").report
        modules = {each.module for each in report.modules}
        assert (HEAD in modules) == (shapes is copies)


def test_a_damaged_file_is_not_asked_for_its_tokens(model: Path, tmp_path: Path) -> None:
    folder = write(tmp_path / "a", ROWS)
    add_tokens(model, folder, TOOL)
    store = AdapterStore(tmp_path / "s")
    version = put(folder, base_of(model), tmp_path / "s").version
    file = store.path(version) / CANONICAL_NAME
    content = file.read_bytes()
    for spoiled in (content[:40], b"\xff" * 80, content.replace(b"{", b"["), content[8:]):
        file.write_bytes(spoiled)
        with pytest.raises(errors.CorruptVersion):
            store.added_tokens(version)


def byte_level(model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model / "tokenizer.json"))


def words(_: Path) -> Tokenizer:
    """Words that carry their space in front, in lower case."""
    vocab = {text: i for i, text in enumerate(("<unk>", "▁a", "▁tool", "▁b", "b"))}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocab, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return tokenizer


LOUD = AddedToken("TOOL b", normalized=True)


@pytest.mark.parametrize("make", [byte_level, words])
def test_an_extended_tokenizer_is_the_one_that_was_saved(
    make: Callable[[Path], Tokenizer], model: Path, tmp_path: Path
) -> None:
    base = make(model)
    (tmp_path / "base").mkdir()
    base.save(str(tmp_path / "base" / "tokenizer.json"))
    tokens = (*TOKENS, LOUD, AddedToken("b", single_word=True, normalized=False))
    add_tokens(tmp_path / "base", tmp_path / "own", *tokens)
    files = {"tokenizer.json": (tmp_path / "own" / "tokenizer.json").read_bytes()}
    added = judge_tokenizer(files, tmp_path / "base" / "tokenizer.json").tokens
    assert added is not None
    saved = Tokenizer.from_file(str(tmp_path / "own" / "tokenizer.json"))
    found = extended(base, added)
    pieces = st.sampled_from(
        ["<tool>", "<|done|>", " <note>", "tool b", "TOOL B", "a", "b", " ", "é"]
    )

    @settings(max_examples=40, deadline=None)
    @given(st.lists(pieces, max_size=8), st.lists(st.integers(0, added.stop_id - 1), max_size=8))
    def check(text: list[str], ids: list[int]) -> None:
        assert found.encode("".join(text)).ids == saved.encode("".join(text)).ids
        for skips in (True, False):
            args = {"skip_special_tokens": skips}
            assert found.decode(ids, **args) == saved.decode(ids, **args)

    check()
    assert base.token_to_id("<tool>") is None
