"""The offline engine against transformers and PEFT: SmolLM2, base and demo adapters, alone and mixed.

What is compared are the reference's own answers: its greedy text to each question, up to and with the
end-of-text token at which it stops by itself (or 64 tokens). Every step of them counts, none is left out;
a bfloat16 run is fed with them, over 500 steps alone and over 500 mixed. What a model would say if it were
forced on past the end of its text belongs to no answer and is not generated.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tests.engine.smollm2 import TARGETS, Chat, Engine, Peft, Question, make_engine

from loraplex_engine.config import Dtype
from loraplex_engine.messages import SamplingParams
from loraplex_engine.offline import Completion, Prompt

pytestmark = [
    pytest.mark.slow,
    # PEFT asks transformers for a property that transformers is about to rename.
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]

NUM_TOKENS = 64  # at most
FLOAT32_TOLERANCE = 1e-3
BFLOAT16_CLEAR_MARGIN = 0.25
PROMPTS = (
    "Which city is the capital of Portugal?",
    "How many hotels have more than 40 rooms?",
    "I lost my umbrella on the bus this morning. What should I do now, and whom can I ask?",
    "Hi!",
    "Describe the sea in a few sentences.",
    "What is a good name for a ship that carries tea, and why?",
)


class Expected(NamedTuple):
    """What transformers says: its greedy answer in float32, and its logits along that answer."""

    question: Question
    answer_ids: list[int]
    float32: torch.Tensor
    bfloat16: torch.Tensor

    @property
    def margins(self) -> torch.Tensor:
        """How far the best token is ahead of the second, at each step."""
        best = self.float32.topk(2).values
        return best[:, 0] - best[:, 1]


@pytest.fixture(scope="module")
def expected(demo_model: Path) -> list[Expected]:
    chat = Chat(demo_model)
    exact, rounded = Peft(demo_model, torch.float32), Peft(demo_model, torch.bfloat16)
    found = []
    for target in TARGETS:
        questions = [Question(target, chat.encode(text)) for text in PROMPTS]
        for question, answer in zip(questions, exact.answers(questions, NUM_TOKENS), strict=True):
            logits = exact.logits(question, answer), rounded.logits(question, answer)
            found.append(Expected(question, answer, *logits))
    return found


@pytest.fixture(scope="module")
def float32_engine(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    yield from engine_of(demo_model, tmp_path_factory.mktemp("store"), "float32")


@pytest.fixture(scope="module")
def bfloat16_engine(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    yield from engine_of(demo_model, tmp_path_factory.mktemp("store"), "bfloat16")


def engine_of(demo_model: Path, store: Path, dtype: Dtype) -> Iterator[Engine]:
    """Two slots for three adapters: they have to take turns."""
    engine = make_engine(demo_model, store, dtype, max_loras=2, records_logits=True)
    yield engine
    engine.adapters.close()


def as_prompt(engine: Engine, item: Expected, *, arrives: int = 0, is_forced: bool) -> Prompt:
    return Prompt(
        item.question.prompt_ids,
        adapter=engine.versions[item.question.target],
        sampling=SamplingParams(max_tokens=len(item.answer_ids), temperature=0.0, ignore_eos=True),
        forced_ids=item.answer_ids if is_forced else None,
        arrives=arrives,
    )


def run_alone(engine: Engine, expected: list[Expected], *, is_forced: bool) -> list[Completion]:
    return [engine.offline.run([as_prompt(engine, e, is_forced=is_forced)])[0] for e in expected]


def run_mixed(engine: Engine, expected: list[Expected], *, is_forced: bool) -> list[Completion]:
    rng = random.Random(7)
    return engine.offline.run(
        as_prompt(engine, e, arrives=rng.randrange(24), is_forced=is_forced) for e in expected
    )


def count_steps(expected: list[Expected]) -> int:
    return sum(len(item.answer_ids) for item in expected)


def count_equal_steps(item: Expected, completion: Completion) -> int:
    """Steps up to the first near tie; asserts that each has the same token and the same logits."""
    assert completion.logits is not None
    ties = (item.margins < FLOAT32_TOLERANCE).nonzero().flatten().tolist()
    num_steps = ties[0] if ties else len(item.answer_ids)
    assert completion.token_ids[:num_steps] == item.answer_ids[:num_steps]
    error = (completion.logits - item.float32)[:num_steps].abs().max().item()
    assert error < FLOAT32_TOLERANCE
    return num_steps


def test_float32_alone_equals_peft(expected: list[Expected], float32_engine: Engine) -> None:
    alone = expected[:: len(PROMPTS)]  # one question to each target
    completions = run_alone(float32_engine, alone, is_forced=False)
    steps = sum(map(count_equal_steps, alone, completions))
    assert steps >= 0.95 * count_steps(alone)


def test_float32_mixed_equals_peft(expected: list[Expected], float32_engine: Engine) -> None:
    completions = run_mixed(float32_engine, expected, is_forced=False)
    steps = sum(map(count_equal_steps, expected, completions))
    assert steps >= 0.95 * count_steps(expected)


def assert_as_good_as_transformers(expected: list[Expected], completions: list[Completion]) -> None:
    """In bfloat16: the same clear choices, and no more noise than twice transformers' own."""
    assert count_steps(expected) >= 500
    ours = torch.cat([c.logits for c in completions if c.logits is not None])
    exact = torch.cat([item.float32 for item in expected])
    theirs = torch.cat([item.bfloat16 for item in expected])
    assert ours.shape == exact.shape
    assert rms(ours - exact) <= 2 * rms(theirs - exact)
    margins = torch.cat([item.margins for item in expected])
    wrong = margins[ours.argmax(-1) != exact.argmax(-1)]
    assert wrong[wrong >= BFLOAT16_CLEAR_MARGIN].tolist() == []  # margins that were overturned


def rms(values: torch.Tensor) -> float:
    return values.square().mean().sqrt().item()


def test_bfloat16_alone_follows_the_reference(
    expected: list[Expected], bfloat16_engine: Engine
) -> None:
    assert_as_good_as_transformers(expected, run_alone(bfloat16_engine, expected, is_forced=True))


def test_bfloat16_mixed_follows_the_reference(
    expected: list[Expected], bfloat16_engine: Engine
) -> None:
    assert_as_good_as_transformers(expected, run_mixed(bfloat16_engine, expected, is_forced=True))
