"""The page about adapters names settings that exist."""

import re
from dataclasses import fields
from pathlib import Path

from loraplex_engine.config import EngineConfig

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "deploy" / "docs" / "adapters.md").read_text()


def test_every_engine_setting_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(max_\w*(?:lora|loras)\w*)`", PAGE))
    assert named - {field.name for field in fields(EngineConfig)} == set()
    assert named
