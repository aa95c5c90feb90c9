"""The page about adapters names tests and settings that exist."""

import re
from dataclasses import fields
from pathlib import Path

from loraplex_engine.config import EngineConfig

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "deploy" / "docs" / "adapters.md").read_text()


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert named - defined == set()
    assert len(named) > 20


def test_every_engine_setting_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(max_\w*(?:lora|loras)\w*)`", PAGE))
    assert named - {field.name for field in fields(EngineConfig)} == set()
    assert named
