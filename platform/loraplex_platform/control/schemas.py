"""What goes into the admin API, and what comes out."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from fastapi import Path
from pydantic import (
    AfterValidator,
    AwareDatetime,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from loraplex_platform.audit.models import AuditEvent
from loraplex_platform.auth.keys import PlainKey
from loraplex_platform.auth.models import AdminKey, ApiKey
from loraplex_platform.kit.bodies import Body
from loraplex_platform.kit.json_schema import NULL, form, never_null
from loraplex_platform.kit.pagination import Listed
from loraplex_platform.kit.principal import OPERATOR_ROLES, Role, Scope

Id = Annotated[str, Path(pattern=r"^[A-Za-z0-9_]{1,64}$")]
Text = Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Names = Annotated[list[Annotated[Text, Field(min_length=1)]], Field(max_length=1000)]
Network = Annotated[Text, Field(min_length=1, json_schema_extra=form("ip-network"))]
Networks = Annotated[list[Network], Field(max_length=1000)]
Tier = Literal["interactive", "standard", "batch"]
Weight = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Share = Annotated[float, Field(gt=0, le=1)]


def _in_range(moment: datetime) -> datetime:
    """Far enough from the ends of the calendar to be written in any zone."""
    if not 2000 <= moment.year < 9000:
        raise ValueError("a year from 2000 to 8999")
    return moment.astimezone(UTC)


Moment = Annotated[AwareDatetime, AfterValidator(_in_range)]


class Change(Body):
    """A partial update: what is not there stays, null clears what may be empty."""

    @property
    def given(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True)

    @model_validator(mode="after")
    def refuse_null(self) -> Self:
        for name in type(self).required():
            if name in self.model_fields_set and getattr(self, name) is None:
                raise ValueError(f"{name} may not be null")
        return self

    @classmethod
    def required(cls) -> frozenset[str]:
        return frozenset()

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        found = handler(core_schema)
        never_null(handler.resolve_ref_schema(found)["properties"], cls.required())
        return found


class Output(Listed):
    model_config = ConfigDict(from_attributes=True)


class TenantSettings(Change):
    plan_id: Annotated[Text, Field(max_length=64)] | None = None
    weight: Weight | None = None
    max_tier: Tier | None = None
    max_running: Count | None = None
    kv_share: Share | None = None
    allowed_models: Names | None = None
    allowed_networks: Networks | None = None
    allowed_regions: Names | None = None
    retention_days: Annotated[int, Field(ge=1, le=36_500)] | None = None


class PromptStorage(Body):
    """Whether the tenant's prompts are kept with their answers, for itself to read."""

    stores_prompts: bool


class NewTenant(TenantSettings):
    name: Name


class TenantPatch(TenantSettings):
    name: Name | None = None

    @classmethod
    def required(cls) -> frozenset[str]:
        return frozenset({"name"})


class TenantOut(Output):
    object: Literal["tenant"] = "tenant"
    id: str
    name: str
    state: Literal["active", "suspended", "closing", "closed"]
    plan_id: str | None
    weight: float | None
    max_tier: str | None
    max_running: int | None
    kv_share: float | None
    allowed_models: list[str] | None
    allowed_networks: list[str] | None
    allowed_regions: list[str] | None
    retention_days: int | None
    stores_prompts: bool
    created_at: datetime
    closed_at: datetime | None


class NewProject(Body):
    name: Name
    allowed_models: Names | None = None


class ProjectPatch(Change):
    name: Name | None = None
    allowed_models: Names | None = None

    @classmethod
    def required(cls) -> frozenset[str]:
        return frozenset({"name"})


class ProjectOut(Output):
    object: Literal["project"] = "project"
    id: str
    tenant_id: str
    name: str
    allowed_models: list[str] | None
    archived_at: datetime | None
    created_at: datetime


class AccountBody(Body):
    name: Name


class AccountOut(Output):
    object: Literal["service_account"] = "service_account"
    id: str
    tenant_id: str
    project_id: str
    name: str
    created_at: datetime


class KeyPatch(Change):
    name: Text | None = None
    scopes: Annotated[list[Scope], Field(max_length=20)] | None = None
    expires_at: Moment | None = None
    allowed_models: Names | None = None
    allowed_networks: Networks | None = None

    @classmethod
    def required(cls) -> frozenset[str]:
        return frozenset({"name", "scopes"})


class NewKey(Body):
    name: Text = ""
    scopes: Annotated[list[Scope], Field(max_length=20)] | None = None  # None: all
    expires_at: Moment | None = None
    allowed_models: Names | None = None
    allowed_networks: Networks | None = None
    service_account_id: Annotated[Text, Field(max_length=64)] | None = None


class KeyOut(Output):
    object: Literal["api_key"] = "api_key"
    id: str
    tenant_id: str
    project_id: str
    service_account_id: str | None
    name: str
    redacted_value: str
    scopes: list[str]
    allowed_models: list[str] | None
    allowed_networks: list[str] | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    previous_until: datetime | None  # when the secret before the last rotation ends
    last_used_at: datetime | None


class NewKeyOut(KeyOut):
    value: str  # the only time that it is seen


class Rotation(Body):
    grace_seconds: Annotated[int, Field(ge=0, le=30 * 86_400)] = 86_400


class NewAdminKey(Body):
    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"role": {"enum": list(OPERATOR_ROLES)}}},
            "then": {"properties": {"tenant_id": NULL}},
        }
    )

    name: Text = ""
    role: Role
    tenant_id: Annotated[Text, Field(max_length=64)] | None = None
    expires_at: Moment | None = None


class AdminKeyPatch(Body):
    name: Text


class AdminKeyOut(Output):
    object: Literal["admin_key"] = "admin_key"
    id: str
    tenant_id: str | None
    name: str
    role: str
    redacted_value: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


class NewAdminKeyOut(AdminKeyOut):
    value: str


class AuditOut(Listed):
    object: Literal["audit_event"] = "audit_event"
    at: datetime
    action: str
    tenant_id: str | None
    object_type: str
    object_id: str
    actor_kind: str
    actor_id: str
    actor_name: str
    request_id: str | None
    address: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None


def key_out(key: ApiKey, last_used_at: datetime | None = None) -> KeyOut:
    facts = {name: getattr(key, name) for name in KeyOut.model_fields if hasattr(key, name)}
    redacted = f"lpx_{key.id}_…{key.last_four}"
    return KeyOut(**facts, redacted_value=redacted, last_used_at=last_used_at)


def new_key_out(key: ApiKey, plain: PlainKey) -> NewKeyOut:
    return NewKeyOut(**key_out(key).model_dump(), value=str(plain))


def admin_key_out(key: AdminKey) -> AdminKeyOut:
    facts = {name: getattr(key, name) for name in AdminKeyOut.model_fields if hasattr(key, name)}
    return AdminKeyOut(**facts, redacted_value=f"lpxadmin_{key.id}_…{key.last_four}")


def audit_out(event: AuditEvent) -> AuditOut:
    names = set(AuditOut.model_fields) - {"object"}
    return AuditOut(**{name: getattr(event, name) for name in names})
