"""Who asks."""

from dataclasses import dataclass
from typing import Literal

Scope = Literal["inference", "files", "batches", "adapters:read", "adapters:write", "usage:read"]
ALL_SCOPES: tuple[Scope, ...] = (
    "inference",
    "files",
    "batches",
    "adapters:read",
    "adapters:write",
    "usage:read",
)


@dataclass(frozen=True, slots=True)
class Principal:
    """A tenant's key at work: every query of tenant data starts from one."""

    tenant_id: str
    project_id: str
    key_id: str
    scopes: frozenset[str] = frozenset(ALL_SCOPES)
