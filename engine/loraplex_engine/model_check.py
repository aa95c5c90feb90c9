"""A model of the user's own, and an adapter, compared with transformers and PEFT.

`python -m loraplex_engine.model_check MODEL [--adapter FOLDER] [--against PATH] [--dtype float32]` prints
what was seen. Returns 0 if both say the same, 3 if not, 2 if they cannot be compared.
"""

import argparse
import gc
import importlib
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Protocol, cast

import torch
from tokenizers import Tokenizer

from loraplex_adapters.errors import AdapterError
from loraplex_adapters.manifest import Limits
from loraplex_adapters.store import AdapterStore, StoredAdapter
from loraplex_engine.build import LoadedModel, adapter_cache, load_model
from loraplex_engine.config import Dtype, EngineConfig
from loraplex_engine.errors import CannotStart
from loraplex_engine.messages import SamplingParams
from loraplex_engine.model.adaptable import adaptable_modules
from loraplex_engine.model.config import ModelConfig, read_model_config
from loraplex_engine.offline import Completion, Offline, Prompt

Say = Callable[[str], None]

EQUAL, DIFFERENT, NOT_COMPARED = 0, 3, 2  # 1 is Python's own, of a crash
PACKAGES = ("transformers", "peft")
TEXTS = (
    "The quick brown fox jumps over the lazy dog. Then it",
    "Съешь же ещё этих мягких французских булок, да",
    "def quicksort(items):\n    if len(items) < 2:\n        return items\n",
)
RANDOM_LENGTHS = (1, 17, 300)  # in chunks of 64, across blocks of 16
STEPS = 16
MAX_LEN = 512
MAX_RANK = 512


class Tolerance(NamedTuple):
    """What counts as equal, as shares of the logits' standard deviation."""

    largest_error: float
    tie: float  # a best token that is ahead by less may be another


TOLERANCES = {"float32": Tolerance(2e-3, 4e-3), "bfloat16": Tolerance(0.5, 0.25)}


class Reference(Protocol):
    """What the logits are compared with; implemented by loraplex_engine.reference_model."""

    def logits(self, token_ids: Sequence[int], count: int, *, with_adapter: bool) -> torch.Tensor:
        """float32 [count, vocab_size]: before each of the last `count` tokens."""
        ...


@dataclass(frozen=True, slots=True)
class Seen:
    """How far the two are apart on some prompts, each cold and again with its prefix cached."""

    num_prompts: int
    num_steps: int
    num_agreed: int  # steps with the same best token
    num_overturned: int  # steps with another, which is no tie
    largest_error: float
    spread: float  # the standard deviation of the reference's logits
    tolerance: Tolerance

    @property
    def is_equal(self) -> bool:
        allowed = self.tolerance.largest_error * self.spread
        return self.largest_error <= allowed and not self.num_overturned  # NaN is not equal

    def __str__(self) -> str:
        verdict = "equal" if self.is_equal else "DIFFERENT"
        return (
            f"{verdict}: {self.num_prompts} prompts, cold and with a cached prefix, "
            f"{self.num_steps} steps; best token the same in {self.num_agreed}, another in spite of "
            f"a clear margin in {self.num_overturned}; largest error of a logit "
            f"{self.largest_error:.2e}, their spread {self.spread:.2f}"
        )


class Said(NamedTuple):
    """What the engine said to a prompt, and whether its adapter was on."""

    prompt: Prompt
    completion: Completion


def ask_engine(
    config: EngineConfig, model: LoadedModel, store: AdapterStore, adapter: str | None
) -> list[Said]:
    cache = adapter_cache(config, model, store)
    offline = Offline(config, model, cache, records_logits=True)
    prompts = [
        Prompt(ids, speaker, SamplingParams(max_tokens=STEPS, temperature=0.0, ignore_eos=True))
        for ids in prompt_ids(config, model.config.vocab_size)
        for speaker in dict.fromkeys([None, adapter])
    ]
    said = [
        Said(*pair) for _ in range(2) for pair in zip(prompts, offline.run(prompts), strict=True)
    ]
    cache.close()
    return said


def prompt_ids(config: EngineConfig, vocab_size: int) -> list[list[int]]:
    """Tokens at random, and texts where there is a tokenizer; each with room for an answer."""
    assert config.max_model_len is not None
    draw = random.Random(0)
    ids = [[draw.randrange(vocab_size) for _ in range(length)] for length in RANDOM_LENGTHS]
    path = config.model / "tokenizer.json"
    if path.exists():
        tokenizer = Tokenizer.from_file(str(path))
        ids += [tokenizer.encode(text).ids for text in TEXTS]
    return [prompt[: config.max_model_len - STEPS] for prompt in ids]


def compare(said: Sequence[Said], reference: Reference, tolerance: Tolerance) -> Seen:
    """Along the engine's own answers, all with the adapter or all without: each step is judged by the
    same tokens before it."""
    ours, theirs = [], []
    known: dict[tuple[int, ...], torch.Tensor] = {}  # an answer is mostly the same when warm
    for prompt, completion in said:
        assert completion.logits is not None
        ids = (*prompt.token_ids, *completion.token_ids)
        if ids not in known:
            has_adapter = prompt.adapter is not None
            count = len(completion.token_ids)
            known[ids] = reference.logits(ids, count, with_adapter=has_adapter)
        ours.append(completion.logits)
        theirs.append(known[ids])
    found, wanted = torch.cat(ours), torch.cat(theirs)
    best = wanted.topk(2).values
    differs = found.argmax(-1) != wanted.argmax(-1)
    spread = wanted.std().item()
    is_clear = best[:, 0] - best[:, 1] > tolerance.tie * spread
    return Seen(
        num_prompts=len(said) // 2,
        num_steps=len(found),
        num_agreed=int((~differs).sum()),
        num_overturned=int((differs & is_clear).sum()),
        largest_error=(found - wanted).abs().max().item(),
        spread=spread,
        tolerance=tolerance,
    )


def check(model: Path, adapter: Path | None, against: Path, dtype: Dtype, say: Say) -> bool:
    """Whether both say the same; the engine's model is gone before the reference is loaded."""
    shape = read_model_config(model)
    with tempfile.TemporaryDirectory(prefix="loraplex-check-") as scratch:
        store = AdapterStore(Path(scratch))
        stored = None if adapter is None else _put(store, adapter, shape)
        config = EngineConfig(
            model=model,
            dtype=dtype,
            max_model_len=min(MAX_LEN, shape.max_position),
            max_num_seqs=16,
            max_num_batched_tokens=64,
            max_loras=1,
            max_lora_rank=1 if stored is None else max(stored.report.rank, 1),
        )
        loaded = load_model(config)
        say(f"model: {model} ({shape.architecture}, {dtype} on {loaded.device.name})")
        said = ask_engine(config, loaded, store, None if stored is None else stored.version)
    del loaded
    gc.collect()
    if stored is not None:
        say(f"adapter: {adapter} (rank {stored.report.rank}, {len(stored.report.modules)} modules)")
    say(f"reference: transformers{'' if adapter is None else ' and PEFT'} on {against}")
    module = importlib.import_module("loraplex_engine.reference_model")  # loads both packages
    reference = cast(Reference, module.load(against, adapter, dtype, shape.dtype))
    is_equal = True
    for name, has_adapter in (("base model", False), ("with the adapter", True)):
        theirs = [item for item in said if (item.prompt.adapter is not None) == has_adapter]
        if theirs:
            seen = compare(theirs, reference, TOLERANCES[dtype])
            say(f"{name}: {seen}")
            is_equal &= seen.is_equal
    say(f"verdict: {'equal' if is_equal else 'DIFFERENT'}")
    return is_equal


def _put(store: AdapterStore, adapter: Path, shape: ModelConfig) -> StoredAdapter:
    return store.put(adapter, base=adaptable_modules(shape), limits=Limits(max_rank=MAX_RANK))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loraplex_engine.model_check", description=__doc__
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--adapter", type=Path, help="a folder that PEFT saved")
    parser.add_argument(
        "--against", type=Path, help="what transformers reads: a folder or GGUF file"
    )
    parser.add_argument("--dtype", choices=list(TOLERANCES), default="float32")
    args = parser.parse_args()
    missing = [package for package in PACKAGES if find_spec(package) is None]
    if missing:
        print(f"not compared: it takes {' and '.join(missing)}; pip install 'loraplex[engine]'")  # noqa: T201
        return NOT_COMPARED
    try:
        is_equal = check(args.model, args.adapter, args.against or args.model, args.dtype, print)
    except (CannotStart, AdapterError) as error:
        print(f"not compared: {error}")  # noqa: T201
        return NOT_COMPARED
    return EQUAL if is_equal else DIFFERENT


if __name__ == "__main__":
    sys.exit(main())
