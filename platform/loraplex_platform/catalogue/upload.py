"""What a client sent becomes a folder on the store's disk; its names are ours, its size bounded."""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import BinaryIO, NamedTuple

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile

from loraplex_adapters.archive import copy_limited, unpack
from loraplex_adapters.errors import AdapterError
from loraplex_adapters.folder import (
    CONFIG_NAME,
    MAX_CONFIG_BYTES,
    TOKENIZER_LIMITS,
    WEIGHTS_NAME,
    open_regular,
)
from loraplex_platform.catalogue.schemas import UploadForm
from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.rest.forms import FileParts

ARCHIVE = "archive"
MAX_BYTES = 2 << 30  # of one adapter that is sent; from a folder it may be larger
NEEDED = {"config": (CONFIG_NAME, MAX_CONFIG_BYTES), "weights": (WEIGHTS_NAME, MAX_BYTES)}
PARTS = NEEDED | {
    name.removesuffix(".json"): (name, limit) for name, limit in TOKENIZER_LIMITS.items()
}
SEPARATE = FileParts(
    {part: name for part, (name, _) in NEEDED.items()},
    {part: name for part, (name, _) in PARTS.items() if part not in NEEDED},
)
ARCHIVED = FileParts({ARCHIVE: "All of them in one zip or tar, plain or compressed."})
PATHS = ("/v1/adapters", "/admin/adapters")  # that it is sent to, by clients and in the console


class Received(NamedTuple):
    """A form that lies on disk."""

    fields: UploadForm
    fingerprint: str  # of all that was sent


async def receive(form: FormData, folder: Path) -> Received:
    """The form's files in an empty folder; raises InvalidRequest with the adapter's own code."""
    fields = fields_of(form)
    files = {name: part.file for name, part in form.items() if isinstance(part, UploadFile)}
    _check_parts(files)
    try:
        weights, *others = await asyncio.to_thread(_write, files, folder)
    except AdapterError as error:
        raise refused(error) from error
    if fields.sha256 is not None and fields.sha256 != weights:
        raise InvalidRequest(
            f"The weights arrived with sha256 {weights}.", param="sha256", code="checksum_mismatch"
        )
    sent = (fields.model_dump(), weights, *others)
    return Received(fields, hashlib.sha256(json.dumps(sent).encode()).hexdigest())


def refused(error: AdapterError, param: str | None = None) -> InvalidRequest:
    """An adapter's fault, as a client is told of it."""
    return InvalidRequest(str(error), param=param, code=error.code)


def fields_of(form: FormData) -> UploadForm:
    given = {name: value for name, value in form.items() if isinstance(value, str)}
    try:
        return UploadForm.model_validate(given)
    except ValidationError as error:
        details = [{**detail, "loc": ("body", *detail["loc"])} for detail in error.errors()]
        raise RequestValidationError(details) from error


def _check_parts(files: dict[str, BinaryIO]) -> None:
    for name in files:
        if name not in (*PARTS, ARCHIVE):
            raise InvalidRequest(f"Unknown file part '{name}'.", param=name, code="unknown_part")
    if ARCHIVE in files and len(files) > 1:
        raise InvalidRequest(
            "Send 'config' and 'weights', or 'archive'.", param=ARCHIVE, code="invalid_value"
        )
    missing = [] if ARCHIVE in files else [name for name in NEEDED if name not in files]
    if missing:
        raise InvalidRequest(
            f"'{missing[0]}' is required, as a file.",
            param=missing[0],
            code="missing_required_parameter",
        )


def _write(files: dict[str, BinaryIO], folder: Path) -> list[str | None]:
    """The sha256 of the weights, and of the other files that may be there."""
    if ARCHIVE in files:
        unpack(files[ARCHIVE], folder, MAX_BYTES)
    else:
        for part, file in files.items():
            name, limit = PARTS[part]
            copy_limited(file, folder / name, limit)
    return [_digest(folder / name) for name in (WEIGHTS_NAME, CONFIG_NAME, *TOKENIZER_LIMITS)]


def _digest(path: Path) -> str | None:
    """None: it was not sent."""
    if not path.exists():
        return None
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
