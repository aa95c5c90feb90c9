"""`/v1/files`."""

from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.responses import Response

from loraplex_platform.auth.dependencies import actor_of, principal_with
from loraplex_platform.errors import from_body
from loraplex_platform.files.ranges import ByteRange, parse_range
from loraplex_platform.files.schemas import DeletedFile, FileObject, FileQuery, UploadForm
from loraplex_platform.files.service import CHUNK_BYTES, FileService
from loraplex_platform.kit.errors import InvalidRequest, RangeNotSatisfiable
from loraplex_platform.kit.pagination import Page
from loraplex_platform.kit.principal import Principal
from loraplex_platform.rest.forms import FileParts, form_body
from loraplex_platform.rest.route import RANGES, TENANT_ERRORS

router = APIRouter(prefix="/v1/files", responses=TENANT_ERRORS)
FilesPrincipal = Annotated[Principal, Depends(principal_with("files"))]
FILE = FileParts({"file": "Of any kind; the file of a batch is named `*.jsonl`."})

OCTETS = "application/octet-stream"


def files_of(request: Request) -> FileService:
    service: FileService = request.app.state.files
    return service


Files = Annotated[FileService, Depends(files_of)]


@router.post("", openapi_extra=form_body(UploadForm, FILE, file_name="requests.jsonl"))
async def create_file(principal: FilesPrincipal, request: Request, files: Files) -> FileObject:
    async with request.form(max_files=1, max_fields=16) as form:
        upload = form.get("file")
        if not isinstance(upload, UploadFile):
            raise InvalidRequest(
                "'file' is required.", param="file", code="missing_required_parameter"
            )
        fields = _fields(form)
        name, by = upload.filename or "", actor_of(request, principal)
        return await files.create(principal, fields, name, upload.file, by=by)


@router.get("")
async def list_files(
    principal: FilesPrincipal, files: Files, query: Annotated[FileQuery, Query()]
) -> Page[FileObject]:
    return await files.list(principal, query)


@router.get("/{file_id}")
async def get_file(file_id: str, principal: FilesPrincipal, files: Files) -> FileObject:
    return FileObject.of(await files.get(principal, file_id))


@router.delete("/{file_id}")
async def delete_file(
    file_id: str, principal: FilesPrincipal, request: Request, files: Files
) -> DeletedFile:
    await files.delete(principal, file_id, by=actor_of(request, principal))
    return DeletedFile(id=file_id)


@router.get(
    "/{file_id}/content",
    response_class=Response,
    responses={**RANGES, 200: {"content": {OCTETS: {}}, "description": "The file."}},
)
async def get_content(
    file_id: str, principal: FilesPrincipal, request: Request, files: Files
) -> Response:
    file, stream = await files.open(principal, file_id)
    name = quote(file.filename)
    headers = {
        "accept-ranges": "bytes",
        "content-disposition": f"attachment; filename*=UTF-8''{name}",
    }
    try:
        part = parse_range(request.headers.get("range"), file.num_bytes)
    except RangeNotSatisfiable:
        stream.close()
        raise
    if part is not None:
        headers["content-range"] = f"bytes {part.start}-{part.end - 1}/{file.num_bytes}"
    sent = part or ByteRange(0, file.num_bytes)
    return StreamingResponse(
        _read(stream, sent),
        206 if part else 200,
        headers | {"content-length": str(sent.num_bytes)},
        media_type=OCTETS,
    )


def _fields(form: FormData) -> UploadForm:
    """Nested fields come as `expires_after[seconds]`."""
    plain: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for name, value in form.multi_items():
        outer, _, inner = name.partition("[")
        if inner:
            nested.setdefault(outer, {})[inner.removesuffix("]")] = value
        elif name != "file":
            plain[name] = value
    try:
        return UploadForm.model_validate(plain | nested)
    except ValidationError as error:
        raise from_body(error) from error


def _read(stream: BinaryIO, part: ByteRange) -> Iterator[bytes]:
    with stream:
        stream.seek(part.start)
        left = part.num_bytes
        while left > 0:
            chunk = stream.read(min(CHUNK_BYTES, left))
            if not chunk:
                raise EOFError("the file is shorter than its row says")
            left -= len(chunk)
            yield chunk
