"""Who asks: a tenant's key at work, or somebody who administers."""

from dataclasses import dataclass, replace
from typing import Literal, Self

Scope = Literal[
    "inference", "files", "batches", "adapters:read", "adapters:write", "usage:read", "prompts"
]
ALL_SCOPES: tuple[Scope, ...] = (
    "inference",
    "files",
    "batches",
    "adapters:read",
    "adapters:write",
    "usage:read",
    "prompts",
)


@dataclass(frozen=True, slots=True)
class Principal:
    """A tenant's key at work: every query of tenant data starts from one."""

    tenant_id: str
    project_id: str
    key_id: str
    scopes: frozenset[str] = frozenset(ALL_SCOPES)
    allowed_models: frozenset[str] | None = None  # None: all the tenant's
    allowed_regions: frozenset[str] | None = None  # None: anywhere

    def may_use(self, model: str) -> bool:
        return self.allowed_models is None or model in self.allowed_models


OperatorRole = Literal["owner", "operator", "billing", "viewer"]
TenantRole = Literal["tenant_admin", "tenant_viewer"]
Role = OperatorRole | TenantRole
OPERATOR_ROLES: tuple[OperatorRole, ...] = ("owner", "operator", "billing", "viewer")
TENANT_ROLES: tuple[TenantRole, ...] = ("tenant_admin", "tenant_viewer")

Permission = Literal[
    "read",  # everything that is not a secret
    "tenants",  # make, change and close tenants, set their plans
    "projects",  # projects, keys and service accounts
    "people",  # invite, change and remove a tenant's people
    "operators",  # the platform's own people and admin keys
    "plans",  # plans and limits
    "billing",  # prices, credits, invoices
    "webhooks",
    "export",  # take a tenant's data away, all of it
]
PERMISSIONS: dict[Role, frozenset[Permission]] = {
    "owner": frozenset(
        (
            "read",
            "tenants",
            "projects",
            "people",
            "operators",
            "plans",
            "billing",
            "webhooks",
            "export",
        )
    ),
    "operator": frozenset(("read", "tenants", "projects", "people", "plans", "webhooks", "export")),
    "billing": frozenset(("read", "billing")),
    "viewer": frozenset(("read",)),
    "tenant_admin": frozenset(("read", "projects", "people", "webhooks", "export")),
    "tenant_viewer": frozenset(("read",)),
}


@dataclass(frozen=True, slots=True)
class Actor:
    """Who does something, as the audit log will name them."""

    kind: Literal["command", "admin_key", "person", "key", "system"]
    id: str
    name: str = ""
    request_id: str | None = None
    address: str | None = None


def key_actor(principal: Principal) -> Actor:
    """The key itself, where no request tells more."""
    return Actor("key", principal.key_id)


@dataclass(frozen=True, slots=True)
class Administrator:
    """Somebody who administers: the platform's staff, or one tenant's people."""

    actor: Actor
    role: Role
    tenant_id: str | None = None  # None: the platform's staff, who see every tenant

    def may(self, permission: Permission) -> bool:
        return permission in PERMISSIONS[self.role]

    def sees(self, tenant_id: str | None) -> bool:
        return self.tenant_id is None or self.tenant_id == tenant_id

    def at(self, request_id: str, address: str | None) -> Self:
        """The same, asking through a request."""
        return replace(self, actor=replace(self.actor, request_id=request_id, address=address))


# Whoever can run commands on the machine can read its database too.
COMMAND_LINE = Administrator(Actor("command", "loraplex"), "owner")
