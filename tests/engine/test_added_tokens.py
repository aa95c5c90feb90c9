"""Adapters with tokens beyond the base model's: logits against transformers + PEFT, alone and mixed."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from tests.added_tokens import TOKENS, TOOL, add_tokens, outspoken
from tests.engine.test_peft_variants import HEARD, TOLERANCE, Variants, distance, save_moved
from tests.engine.tiny import ALL_MODULES, make_model
from tests.until import wait_until
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM

from loraplex_adapters.cache import AdapterCache
from loraplex_adapters.errors import TokensWithoutRows
from loraplex_adapters.layout import BaseModel
from loraplex_adapters.manifest import Limits
from loraplex_adapters.store import AdapterStore
from loraplex_engine.build import adapter_cache, load_model
from loraplex_engine.config import Dtype, EngineConfig
from loraplex_engine.messages import SamplingParams
from loraplex_engine.offline import Completion, Offline, Prompt
from loraplex_engine.self_test import TOLERANCE as SELF_TEST_TOLERANCE
from loraplex_engine.text import ModelText

pytestmark = [
    # PEFT asks transformers for a property that transformers is about to rename.
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:peft.*"),
]

SIZE = 199  # of the base model
NEW = [SIZE, SIZE + 1, SIZE + 2]
PROMPT = [5, 3, 77, SIZE + 2, 198, 4, 120, SIZE, 9, 41, 66, 5, 2, 150, SIZE + 1, 77, 12]
ANSWER = [8, SIZE + 1, 5, SIZE, 198, SIZE + 2, 6]  # said whatever the model prefers
PLAIN = [5, 3, 77, 8, 198]
BOTH = ["embed_tokens", "lm_head"]
SOME = ["q_proj", "down_proj"]
UNTIED: Variants = {
    "resized": {"target_modules": ALL_MODULES},
    "whole both": {"target_modules": SOME, "modules_to_save": BOTH},
    "LoRA of both": {"target_modules": [*BOTH, "v_proj"]},
    "dora of both": {"target_modules": [*BOTH, "v_proj"], "use_dora": True},
    "LoRA of the head with a bias": {
        "target_modules": ["lm_head", "q_proj"],
        "lora_bias": True,
        "modules_to_save": ["embed_tokens"],
    },
    "tokens of both": {
        "target_modules": SOME,
        "trainable_token_indices": {"embed_tokens": [3, *NEW], "lm_head": [*NEW, 150]},
    },
}
TIED: Variants = {
    "tied resized": {"target_modules": ALL_MODULES},
    "tied whole both": {"target_modules": SOME, "modules_to_save": BOTH},
    "tied whole embedding": {"target_modules": SOME, "modules_to_save": ["embed_tokens"]},
    "tied whole embedding and head": {
        "target_modules": SOME,
        "modules_to_save": ["embed_tokens"],
        "ensure_weight_tying": True,
    },
    "tied LoRA of the embedding": {"target_modules": ["embed_tokens", "v_proj"]},
    "tied LoRA of the head": {"target_modules": ["lm_head", "v_proj"]},
    "tied dora of the head": {"target_modules": ["lm_head", "q_proj"], "use_dora": True},
    "tied tokens": {"target_modules": SOME, "trainable_token_indices": [3, *NEW]},
    "tied tokens apart": {
        "target_modules": SOME,
        "trainable_token_indices": {"embed_tokens": [3, *NEW], "lm_head": [*NEW, 150]},
    },
}

# Enough for the quick suite: a copy of its own, LoRA, and single rows, tied and not.
FEW = {
    "untied": ["whole both", "dora of both", "tokens of both"],
    "tied": ["tied whole embedding", "tied LoRA of the head", "tied tokens"],
}


def make_base(folder: Path, num_words: int = SIZE, **shape: Any) -> Path:
    """A random model over words, and its tokenizer."""
    make_model(folder, num_hidden_layers=2, initializer_range=0.1, **shape)
    vocab = {f"w{i}": i for i in range(num_words)}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocab, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def resized(folder: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.resize_token_embeddings(SIZE + len(NEW), mean_resizing=False)
    return model


def logits_of(model: Any) -> torch.Tensor:
    """Before each token of the forced answer."""
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([[*PROMPT, *ANSWER]])).logits[0]
    return logits[len(PROMPT) - 1 : -1]


class World:
    """A base model, an adapter of each kind, one without new tokens, and what PEFT makes of them."""

    def __init__(self, folder: Path, variants: Variants, **shape: Any) -> None:
        self.folder = make_base(folder, **shape)
        self.adapters: dict[str, Path] = {}
        self.expected: dict[str, torch.Tensor] = {}
        for seed, (name, options) in enumerate(variants.items()):
            own = self.adapters[name] = folder / name
            # The model is resized anew to ask PEFT: rows that are not saved would be others.
            self.expected[name] = save_moved(
                lambda: resized(folder), own, options, seed, 0.15, logits_of
            )
            add_tokens(folder, own, *TOKENS)
        plain = {"target_modules": ALL_MODULES}
        save_moved(
            lambda: AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
            folder / "neighbour", plain, 77, 0.15,
        )  # fmt: skip


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., World]:
    """Of one kind, with the few or with all its adapters; made once."""
    made: dict[tuple[str, bool], World] = {}

    def world_of(kind: str, *, has_all: bool) -> World:
        if (kind, has_all) not in made:
            variants = UNTIED if kind == "untied" else TIED
            chosen = {n: o for n, o in variants.items() if has_all or n in FEW[kind]}
            folder = tmp_path_factory.mktemp(kind)
            made[kind, has_all] = World(folder, chosen, tie_word_embeddings=kind == "tied")
        return made[kind, has_all]

    return world_of


EVERY = pytest.param(True, marks=pytest.mark.slow)


@contextmanager
def engine_of(
    folder: Path, adapters: Mapping[str, Path], store: Path, dtype: Dtype, **settings: Any
) -> Iterator[tuple[Offline, dict[str, str]]]:
    """An engine that records logits and speaks, and the versions of the adapters."""
    config = EngineConfig(
        model=folder, dtype=dtype, max_num_batched_tokens=1024, max_num_seqs=64,
        enable_prefix_caching=False, max_loras=len(adapters), max_lora_rank=32,
        cpu_kv_cache_bytes=2**22, threads=1, **settings,
    )  # fmt: skip
    model, versions = load_model(config), AdapterStore(store)
    base = BaseModel.from_checkpoint(None, folder)
    names = {n: versions.put(a, base=base, limits=Limits(32)).version for n, a in adapters.items()}
    cache = adapter_cache(config, model, versions)
    text = ModelText(Tokenizer.from_file(str(folder / "tokenizer.json")))
    try:
        yield Offline(config, model, cache, decoder=text, records_logits=True), names
    finally:
        cache.close()


def logits(done: Completion) -> torch.Tensor:
    assert done.logits is not None
    return done.logits


@pytest.mark.parametrize("has_all", [False, EVERY])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["untied", "tied"])
def test_every_kind_of_added_rows_equals_peft_alone_and_mixed(
    kind: str, dtype: Dtype, has_all: bool, worlds: Callable[..., World], tmp_path: Path
) -> None:
    world = worlds(kind, has_all=has_all)
    adapters = world.adapters | {"neighbour": world.folder / "neighbour"}
    with engine_of(world.folder, adapters, tmp_path, dtype) as (run, versions):
        own = {n: Prompt(PROMPT, versions[n], forced_ids=ANSWER) for n in world.adapters}
        others = [Prompt(PLAIN, adapter) for adapter in (None, versions["neighbour"])]
        alone = {name: logits(run.run([prompt])[0]) for name, prompt in own.items()}
        without = run.run(others)
        mixed = run.run([*others[:1], *own.values(), *others[1:]])
    among = dict(zip(own, map(logits, mixed[1:-1]), strict=True))
    off = {
        name: (distance(alone[name], expected), distance(among[name], expected))
        for name, expected in world.expected.items()
    }
    assert {name: both for name, both in off.items() if max(both) > TOLERANCE[dtype]} == {}
    assert [each.shape[1] for each in alone.values()] == [SIZE + len(NEW)] * len(own)
    quiet = [n for n, x in alone.items() if distance(x[:1, :SIZE], logits(without[0])[:1]) < HEARD]
    assert quiet == []
    undisturbed = (mixed[0], mixed[-1])
    assert [each.token_ids for each in undisturbed] == [each.token_ids for each in without]
    if dtype == "bfloat16":
        assert [n for n in own if not alone[n].equal(among[n])] == []
        pairs = zip(undisturbed, without, strict=True)
        assert all(logits(one).equal(logits(other)) for one, other in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["untied", "tied"])
def test_greedy_tokens_are_pefts(kind: str, worlds: Callable[..., World], tmp_path: Path) -> None:
    world = worlds(kind, has_all=True)
    sampling = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    with engine_of(world.folder, world.adapters, tmp_path, "float32") as (run, versions):
        prompts = [Prompt(PROMPT, versions[n], sampling) for n in world.adapters]
        said = [done.token_ids for done in run.run(prompts)]
    for (name, folder), ids in zip(world.adapters.items(), said, strict=True):
        loaded = peft.PeftModel.from_pretrained(resized(world.folder), folder).eval()
        expected = loaded.generate(
            torch.tensor([PROMPT]), max_new_tokens=8, do_sample=False, eos_token_id=None,
            pad_token_id=0,
        )[0, len(PROMPT) :].tolist()  # fmt: skip
        assert ids == expected, name


def test_rows_that_peft_does_not_save_are_refused(tmp_path: Path) -> None:
    """LoRA of the head alone: PEFT keeps the head's new rows, and forgets the embedding's."""
    folder = make_base(tmp_path / "base")
    options = {"target_modules": ["lm_head", "q_proj"]}
    save_moved(lambda: resized(folder), tmp_path / "a", options, 1, 0.15)
    add_tokens(folder, tmp_path / "a", *TOKENS)
    base = BaseModel.from_checkpoint(None, folder)
    with pytest.raises(TokensWithoutRows, match=r"embed_tokens has 199 rows"):
        AdapterStore(tmp_path / "s").put(tmp_path / "a", base=base, limits=Limits(8))


ASKED = [5, 3, 77, SIZE + 2]
GREEDY = SamplingParams(max_tokens=6, temperature=0.0)
Speaking = tuple[Offline, dict[str, str]]


@pytest.fixture(scope="module")
def speaking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaking]:
    """An adapter that answers ASKED with one added token and ends with another; a plain neighbour."""
    folder = tmp_path_factory.mktemp("speaking")
    base = make_base(folder / "base")
    adapters = {"loud": outspoken(base, folder / "loud", ASKED)}
    options = {"target_modules": ALL_MODULES}
    save_moved(
        lambda: AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
        folder / "plain", options, 5, 0.15,
    )  # fmt: skip
    adapters["plain"] = folder / "plain"
    with engine_of(base, adapters, folder / "s", "bfloat16") as (run, versions):
        yield run, versions


def test_an_added_token_is_said_and_another_ends_the_text(speaking: Speaking) -> None:
    run, versions = speaking
    [done] = run.run([Prompt(ASKED, versions["loud"], GREEDY)])
    assert done.finished is not None
    assert (done.token_ids, done.text) == ([SIZE, SIZE + 1], TOOL.content)
    assert (done.finished.finish_reason, done.finished.stop_reason) == ("stop", None)


@pytest.mark.parametrize(
    ("sampling", "token_ids", "reason"),
    [
        ({"ignore_eos": True, "max_tokens": 2}, [SIZE, SIZE + 1], "length"),
        ({"stop_token_ids": (SIZE,)}, [SIZE], "stop"),
        ({"stop": ("tool",)}, [SIZE], "stop"),
        ({"logit_bias": ((SIZE, -1000.0), (SIZE + 2, 2000.0)), "max_tokens": 2}, [SIZE + 2] * 2, "length"),
        ({"temperature": 1.0, "seed": 3, "top_p": 0.9, "top_k": 5}, [SIZE, SIZE + 1], "stop"),
    ],
)  # fmt: skip
def test_sampling_parameters_know_the_added_tokens(
    sampling: dict[str, Any], token_ids: list[int], reason: str, speaking: Speaking
) -> None:
    run, versions = speaking
    params = SamplingParams(**{"max_tokens": 6, "temperature": 0.0} | sampling)
    [done] = run.run([Prompt(ASKED, versions["loud"], params)])
    assert done.finished is not None
    assert (done.token_ids, done.finished.finish_reason) == (token_ids, reason)


def test_an_added_end_is_banned_until_min_tokens(speaking: Speaking) -> None:
    run, versions = speaking
    params = SamplingParams(max_tokens=4, min_tokens=3, temperature=0.0)
    [done] = run.run([Prompt(ASKED, versions["loud"], params)])
    assert done.token_ids[0] == SIZE
    assert SIZE + 1 not in done.token_ids[:3]
    assert len(done.token_ids) >= 3


def test_log_probabilities_of_rows_of_both_widths_are_of_their_own_vocabulary(
    speaking: Speaking,
) -> None:
    run, versions = speaking
    asks = [
        Prompt(PLAIN, None, SamplingParams(max_tokens=2, temperature=0.0, logprobs=4)),
        Prompt(ASKED, versions["loud"], SamplingParams(max_tokens=2, temperature=0.0, logprobs=1)),
        Prompt(PLAIN, versions["plain"], SamplingParams(max_tokens=2, temperature=0.0)),
        Prompt(ASKED, versions["loud"], SamplingParams(max_tokens=2, temperature=0.0, logprobs=3)),
    ]
    for ask, done in zip(asks, run.run(asks), strict=True):
        wanted = ask.sampling.logprobs
        assert len(done.logprobs) == (0 if wanted is None else len(done.token_ids))
        for row, said in zip(logits(done), done.logprobs, strict=False):
            exact = row.log_softmax(-1)
            assert said.logprob == pytest.approx(float(exact[said.token_id]), abs=1e-5)
            assert [token for token, _ in said.top] == exact.topk(wanted or 0).indices.tolist()


def test_neighbours_draw_what_they_draw_alone(speaking: Speaking) -> None:
    run, versions = speaking
    params = [SamplingParams(max_tokens=12, seed=seed, ignore_eos=True) for seed in range(6)]
    names = [None, versions["plain"]] * 3
    asks = [Prompt(PLAIN, name, p) for name, p in zip(names, params, strict=True)]
    alone = [run.run([ask])[0] for ask in asks]
    loud = Prompt(ASKED, versions["loud"], replace(GREEDY, ignore_eos=True, max_tokens=12))
    among = run.run([loud, *asks[:3], loud, *asks[3:]])
    for one, other in zip(alone, [*among[1:4], *among[5:]], strict=True):
        assert one.token_ids == other.token_ids
        assert logits(one).equal(logits(other))


@pytest.mark.parametrize("name", [None, "plain"])
@pytest.mark.parametrize(
    ("prompt", "sampling"),
    [
        ([5, SIZE], {}),
        (PLAIN, {"logit_bias": ((SIZE, 1.0),)}),
        (PLAIN, {"stop_token_ids": (SIZE,)}),
    ],
)
def test_nobody_else_has_these_tokens(
    name: str | None, prompt: list[int], sampling: dict[str, Any], speaking: Speaking
) -> None:
    run, versions = speaking
    params = replace(GREEDY, **sampling)
    [refused] = run.run([Prompt(prompt, versions[name] if name else None, params)])
    assert refused.finished is not None
    assert refused.finished.error == "bad_request"
    [beyond] = run.run([Prompt([SIZE + len(NEW)], versions["loud"], GREEDY)])
    assert beyond.finished is not None
    assert beyond.finished.error == "bad_request"


def test_the_self_test_reads_and_says_added_tokens(speaking: Speaking) -> None:
    run, versions = speaking
    cache = run.engine.adapters
    assert isinstance(cache, AdapterCache)
    cache.check(versions["loud"])
    wait_until(lambda: bool(cache.checks))
    found = cache.checks
    assert found[0].passed, found
    assert found[0].error is not None
    assert found[0].error < SELF_TEST_TOLERANCE[torch.bfloat16]


def test_a_step_planned_ahead_feeds_on_added_tokens(tmp_path: Path) -> None:
    """The token is not known to the loop when the step that computes it is launched."""
    base = make_base(tmp_path / "base")
    adapters = {"loud": outspoken(base, tmp_path / "loud", ASKED)}
    params = replace(GREEDY, ignore_eos=True, repetition_penalty=1.1, max_tokens=5)
    said = []
    for steps_ahead in (0, 1):
        with engine_of(base, adapters, tmp_path / "s", "bfloat16", steps_ahead=steps_ahead) as (
            run,
            versions,
        ):
            asks = [Prompt(ASKED, versions["loud"], params), Prompt(PLAIN, None, params)]
            said.append([done.token_ids for done in run.run(asks)])
    assert said[0] == said[1]
    assert SIZE in said[0][0]
    assert SIZE + 1 in said[0][0]
