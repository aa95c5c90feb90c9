"""Files as clients see them."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field

from loraplex_platform.files.models import StoredFile
from loraplex_platform.kit.bodies import Body
from loraplex_platform.kit.pagination import Listed

Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]
LEAST_EXPIRY_S, LONGEST_EXPIRY_S = 3600, 2_592_000


class ExpiresAfter(Body):
    """How long a file lives after it was made."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=LEAST_EXPIRY_S, le=LONGEST_EXPIRY_S)]


class UploadForm(BaseModel):
    """The fields beside the file itself."""

    purpose: Purpose
    expires_after: ExpiresAfter | None = None


class FileQuery(BaseModel):
    """What a list is asked for."""

    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=10_000)] = 10_000
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None


class FileObject(Listed):
    """OpenAI's file object."""

    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: None = None

    @classmethod
    def of(cls, file: StoredFile) -> Self:
        expires = file.expires_at
        return cls(
            id=file.id,
            bytes=file.num_bytes,
            created_at=int(file.created_at.timestamp()),
            expires_at=None if expires is None else int(expires.timestamp()),
            filename=file.filename,
            purpose=file.purpose,
        )


class DeletedFile(BaseModel):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True
