"""Blobs on a folder and on another fsspec file system."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from loraplex_adapters.blobs import BlobStore


@pytest.fixture(params=["folder", "memory"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    url = f"memory://{uuid.uuid4().hex}" if request.param == "memory" else tmp_path / "blobs"
    return BlobStore(url)


def text_of(blobs: BlobStore, key: str) -> bytes:
    with blobs.open(key) as file:
        return file.read()


def test_a_blob_is_read_as_it_was_written_and_replaced_whole(blobs: BlobStore) -> None:
    assert blobs.write("ab/one", [b"first ", b"text"]) == 10
    assert text_of(blobs, "ab/one") == b"first text"
    blobs.write("ab/one", [b"second"])
    assert text_of(blobs, "ab/one") == b"second"


def test_a_blob_whose_source_fails_does_not_appear(blobs: BlobStore) -> None:
    def failing() -> Iterator[bytes]:
        yield b"half"
        raise ZeroDivisionError

    blobs.write("ab/one", [b"before"])
    with pytest.raises(ZeroDivisionError):
        blobs.write("ab/one", failing())
    assert text_of(blobs, "ab/one") == b"before"


def test_a_deleted_blob_is_gone_and_may_be_deleted_again(blobs: BlobStore) -> None:
    blobs.write("ab/one", [b"text"])
    blobs.delete("ab/one")
    blobs.delete("ab/one")
    with pytest.raises(FileNotFoundError):
        blobs.open("ab/one")


def test_no_draft_is_left_behind(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path)
    blobs.write("ab/one", [b"text"])
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["one"]
