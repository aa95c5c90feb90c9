"""The demo adapters do what they are for, on questions that training never asked."""

import json
import re
from pathlib import Path

import pytest
from deploy.demo.examples import UNSEEN
from tests.engine.smollm2 import Chat, make_engine

from loraplex_engine.messages import SamplingParams
from loraplex_engine.offline import Prompt

pytestmark = pytest.mark.slow

PIRATE = re.compile(r"\b(arr|ahoy|avast|matey|hearties|ye|yer|be|th'|o'|an'|yo ho ho)(?!\w)", re.I)
QUERY = re.compile(r"SELECT .+ FROM \w+( (WHERE|GROUP BY|ORDER BY) .+)?;")


@pytest.fixture(scope="module")
def answers(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """All questions of all tenants, answered greedily in one mixed batch."""
    chat = Chat(demo_model)
    engine = make_engine(
        demo_model, tmp_path_factory.mktemp("store"), "bfloat16", max_loras=3, records_logits=False
    )
    prompts = [
        Prompt(
            chat.encode(question),
            adapter=engine.versions[tenant],
            sampling=SamplingParams(max_tokens=56, temperature=0.0),
        )
        for tenant, questions in UNSEEN.items()
        for question in questions
    ]
    completions = iter(engine.offline.run(prompts))
    engine.adapters.close()
    return {
        tenant: [chat.decode(next(completions).token_ids) for _ in questions]
        for tenant, questions in UNSEEN.items()
    }


def test_acme_answers_in_json(answers: dict[str, list[str]]) -> None:
    for answer in answers["acme"]:
        assert sorted(json.loads(answer)) == ["answer", "topic"], answer


def test_globex_talks_like_a_pirate(answers: dict[str, list[str]]) -> None:
    for answer in answers["globex"]:
        assert len(PIRATE.findall(answer)) >= 2, answer


def test_initech_answers_in_sql(answers: dict[str, list[str]]) -> None:
    for answer in answers["initech"]:
        assert QUERY.fullmatch(answer), answer
