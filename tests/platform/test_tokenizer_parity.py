"""What the API sends for a text or a chat is what transformers would send, in many scripts."""

import shutil
from pathlib import Path

import pytest
from tests.engine.cache import cache_folder
from tests.engine.gemma3 import gemma3_folder
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from loraplex_engine.detokenizer import Detokenizer
from loraplex_engine.importer import DEMO_MODEL, import_model
from loraplex_platform.openai.served_model import ServedModel

CORPUS = [
    "The quick brown fox, naïve café — 3.14 % of “it”.",
    "Große Straße, ähnlich; ¿Dónde está el niño?",
    "Съешь же ещё этих мягких французских булок",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία",
    "نص حكيم له سر قاطع وذو شأن عظيم",
    "עטלף אבק נס דרך מזגן שהתפוצץ",
    "ऋषियों को सताने वाले दुष्ट राक्षसों",
    "ประเทศไทย รวมเลือดเนื้อชาติเชื้อไทย",
    "いろはにほへと ちりぬるを 漢字とカタカナ",
    "天地玄黃,宇宙洪荒。日月盈昃",
    "키스의 고유조건은 입술끼리 만나야 하고",
    "👩‍👩‍👧‍👦 🇩🇪 👍🏽 e\u0301 ﬁ \u200b\u00a0|",
    "def f(x):\n\treturn  x ** 2   # двойка\r\n",
    "",
    "   leading and trailing   ",
]
CHAT = [
    {"role": "system", "content": "Kürze!"},
    {"role": "user", "content": "Привет <|end|> <tool> 世界"},
    {"role": "assistant", "content": " 你好\n"},
    {"role": "user", "content": "और?"},
]
TEMPLATE = """{{ bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}
    {{- '<|start|>' + message['role'] + '\n' + message.content | trim + '<|end|>\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"""
SPECIAL = ["<s>", "</s>", "<|start|>", "<|end|>"]


def byte_level() -> Tokenizer:
    """As Llama 3, Qwen and SmolLM are."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS[:8], trainer)
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As Llama 2, Gemma and Phi-3 are: pieces with ▁, and bytes for what has no piece."""
    vocab = {token: i for i, token in enumerate(["<unk>", *SPECIAL])}
    for token in [f"<0x{byte:02X}>" for byte in range(256)] + list(
        "▁abcdefghijklmnopqrstuvwxyzé漢"
    ):
        vocab.setdefault(token, len(vocab))
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("a", "n")]
    for first, second in merges:
        vocab[first + second] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def byte_fallback_with_a_space_before() -> Tokenizer:
    """As Llama 2 is: a text begins with a ▁ that decoding takes away again."""
    tokenizer = byte_fallback()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


MADE = [byte_level, byte_fallback, byte_fallback_with_a_space_before]


def smollm2() -> Path:
    return import_model(DEMO_MODEL, cache_folder())


def gemma3() -> Path:
    """A base model: its folder has no chat template."""
    return gemma3_folder(cache_folder())


REAL = [pytest.param(find, marks=pytest.mark.slow) for find in (smollm2, gemma3)]


@pytest.fixture(scope="module", params=[*MADE, *REAL])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = request.param()
    if isinstance(made, Path):
        return with_template(made, tmp_path_factory.mktemp(request.param.__name__))
    tokenizer = made
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE
    )
    folder = tmp_path_factory.mktemp(request.param.__name__)
    wrapped.save_pretrained(folder)
    return folder


def with_template(real: Path, folder: Path) -> Path:
    """A copy of what is not weights, and a chat template where there is none."""
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    for path in [*real.glob("*.json"), *real.glob("*.jinja")]:
        shutil.copy(path, folder)
    return folder


def test_texts_have_the_ids_that_transformers_gives(folder: Path) -> None:
    served, reference = ServedModel.load(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    for text in [*CORPUS, *(f"<|start|>{text}<tool>{text}<|end|>" for text in CORPUS)]:
        for special in (True, False):
            ids = served.encode(text, add_special_tokens=special)
            assert list(ids) == reference.encode(text, add_special_tokens=special), text


def test_a_chat_reads_as_transformers_renders_it(folder: Path) -> None:
    served, reference = ServedModel.load(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    text = reference.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert served.render(CHAT) == text
    ids = reference.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert list(served.encode(served.render(CHAT), add_special_tokens=False)) == ids


def test_pieces_of_text_add_up_to_what_transformers_decodes(folder: Path) -> None:
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    decoder = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in CORPUS:
        ids = reference.encode(text, add_special_tokens=False)
        detokenizer = Detokenizer(decoder)
        pieces = [detokenizer.push(token_id).text for token_id in ids]
        whole = "".join(pieces) + detokenizer.finish().text
        assert whole == reference.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        assert "\N{REPLACEMENT CHARACTER}" not in whole
