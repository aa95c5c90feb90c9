"""The hub is asked for an adapter's two files, into a folder of ours."""

from pathlib import Path
from typing import Any

import pytest
from tests.adapters.folders import BASE, write_adapter

from loraplex_adapters import hub
from loraplex_adapters.errors import MissingFile
from loraplex_adapters.folder import CONFIG_NAME, TOKENIZER_LIMITS, WEIGHTS_NAME
from loraplex_adapters.manifest import Limits
from loraplex_adapters.store import AdapterStore


@pytest.mark.parametrize("text", ["/absolute/path", "one", "a/b/c", "", "a b/c"])
def test_what_is_no_hub_id_is_not_asked_for(text: str, tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="neither a folder nor"):
        hub.download_adapter(text, tmp_path)


def test_an_adapters_files_are_fetched_and_can_be_stored(
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
        "allow_patterns": [CONFIG_NAME, WEIGHTS_NAME, *TOKENIZER_LIMITS],
    }
    stored = AdapterStore(tmp_path / "store").put(tmp_path / "here", base=BASE, limits=Limits(8))
    assert stored.report.rank == 4


def test_what_the_hub_refuses_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fetch(*_: Any, **__: Any) -> None:
        raise OSError("offline")

    monkeypatch.setattr(hub, "snapshot_download", fetch)
    with pytest.raises(MissingFile, match=r"owner/name cannot be fetched: offline"):
        hub.download_adapter("owner/name", tmp_path)
