"""The hub is asked for an adapter's two files, into a folder of ours."""

from pathlib import Path
from typing import Any

import pytest
from tests.adapters.folders import BASE, write_adapter

from loraplex_adapters import hub
from loraplex_adapters.errors import MissingFile
from loraplex_adapters.folder import CONFIG_NAME, WEIGHTS_NAME
from loraplex_adapters.manifest import Limits
from loraplex_adapters.store import AdapterStore


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("owner/name", True),
        ("owner/na.me-2@v1.0", True),
        ("owner/name@refs/pr/3", True),
        ("/absolute/path", False),
        ("one", False),
        ("a/b/c", False),
        ("../up", True),  # a folder that is not there: the hub refuses the name
    ],
)
def test_what_looks_like_a_hub_id(text: str, is_one: bool) -> None:
    assert hub.is_hub_id(text) == is_one


def test_the_two_files_are_fetched_and_can_be_stored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {}

    def fetch(repository: str, *, local_dir: Path, **said: Any) -> None:
        asked.update(said, repository=repository)
        write_adapter(local_dir)
        (local_dir / ".cache").mkdir()

    monkeypatch.setattr(hub, "snapshot_download", fetch)
    hub.download_adapter("owner/name@v2", tmp_path / "here")
    assert asked == {
        "repository": "owner/name",
        "revision": "v2",
        "allow_patterns": [CONFIG_NAME, WEIGHTS_NAME],
    }
    stored = AdapterStore(tmp_path / "store").put(tmp_path / "here", base=BASE, limits=Limits(8))
    assert stored.report.rank == 4


def test_what_the_hub_refuses_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fetch(*_: Any, **__: Any) -> None:
        raise OSError("offline")

    monkeypatch.setattr(hub, "snapshot_download", fetch)
    with pytest.raises(MissingFile, match=r"owner/name cannot be fetched: offline"):
        hub.download_adapter("owner/name", tmp_path)
