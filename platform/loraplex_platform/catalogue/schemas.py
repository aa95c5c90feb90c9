"""Adapters as clients see them."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from loraplex_platform.catalogue.defaults import Defaults
from loraplex_platform.catalogue.models import Adapter, AdapterName
from loraplex_platform.kit.bodies import Body
from loraplex_platform.kit.errors import InvalidRequest
from loraplex_platform.kit.json_schema import never_null
from loraplex_platform.kit.pagination import Listed

Number = Annotated[int, Field(ge=1, lt=2**31)]
ADAPTER_NAME = r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,126}"
NEVER_NULL = ("current", "enabled", "pinned", "defaults")


class UploadForm(BaseModel):
    """The fields beside the files."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(json_schema_extra={"pattern": f"^{ADAPTER_NAME}$"})]
    activate: bool = False  # the first version of a name is current anyhow
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None  # of the weights


class AdapterQuery(BaseModel):
    """What a list is asked for."""

    after: Annotated[str, Field(max_length=128)] | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20


class Canary(Body):
    """A version that answers a share of the callers, always the same ones."""

    version: Number
    percent: Annotated[int, Field(ge=0, le=100)]


class AdapterPatch(Body):
    """What changes; what is not named stays."""

    current: Number | None = None
    canary: Canary | None = None
    enabled: bool | None = None
    pinned: bool | None = None
    defaults: Defaults | None = None

    @model_validator(mode="after")
    def _check_canary_alone(self) -> Self:
        for name in NEVER_NULL:
            if name in self.model_fields_set and getattr(self, name) is None:
                raise InvalidRequest(f"'{name}' cannot be null.", param=name, code="invalid_value")
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        found = handler(core_schema)
        never_null(handler.resolve_ref_schema(found)["properties"], NEVER_NULL)
        return found


class VersionObject(BaseModel):
    """One version of a name, with what was said when it was judged."""

    number: int
    sha256: str
    rank: int
    bytes: int
    created_at: int
    report: dict[str, Any]
    parity: dict[str, Any] | None  # its self-test; null until an engine has run it

    @classmethod
    def of(cls, version: Adapter) -> Self:
        return cls(
            number=version.number,
            sha256=version.version,
            rank=version.rank,
            bytes=version.num_bytes,
            created_at=int(version.created_at.timestamp()),
            report=version.manifest,
            parity=version.parity,
        )


class AdapterObject(Listed):
    """A name and what it stands for."""

    object: Literal["adapter"] = "adapter"
    current: int
    previous: int | None
    canary: Canary | None
    enabled: bool
    pinned: bool
    defaults: dict[str, Any]
    created_at: int
    updated_at: int

    @classmethod
    def of(cls, row: AdapterName) -> Self:
        return cls(**_facts(row))


class AdapterDetail(AdapterObject):
    """The same with its versions, or the one that was asked for."""

    versions: list[VersionObject]

    @classmethod
    def with_versions(cls, row: AdapterName, versions: Sequence[Adapter]) -> Self:
        return cls(**_facts(row), versions=[VersionObject.of(each) for each in versions])


class DeletedAdapter(BaseModel):
    id: str
    object: Literal["adapter"] = "adapter"
    deleted: Literal[True] = True


def _facts(row: AdapterName) -> dict[str, Any]:
    canary = None
    if row.canary is not None:
        canary = Canary(version=row.canary, percent=row.canary_percent or 0)
    return {
        "id": row.name,
        "current": row.current,
        "previous": row.previous,
        "canary": canary,
        "enabled": row.is_enabled,
        "pinned": row.is_pinned,
        "defaults": row.defaults,
        "created_at": int(row.created_at.timestamp()),
        "updated_at": int(row.updated_at.timestamp()),
    }
