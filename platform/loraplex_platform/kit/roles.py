"""Who may give which role to whom."""

from loraplex_platform.kit.errors import InvalidRequest, PermissionDenied
from loraplex_platform.kit.principal import (
    OPERATOR_ROLES,
    PERMISSIONS,
    TENANT_ROLES,
    Administrator,
    Permission,
)


def check_role(by: Administrator, role: str, tenant_id: str | None) -> None:
    """Raises unless `by` may make, change or remove somebody of this role in this place."""
    roles = OPERATOR_ROLES if tenant_id is None else TENANT_ROLES
    if role not in roles:
        raise InvalidRequest(f"role must be one of {', '.join(roles)}", param="role")
    needed: Permission = "operators" if tenant_id is None else "people"
    if not by.may(needed) or not by.sees(tenant_id):
        raise PermissionDenied(f"You may not decide about the role '{role}' here.")


def allows(by: Administrator, permission: Permission) -> None:
    if permission not in PERMISSIONS[by.role]:
        raise PermissionDenied(f"Your role '{by.role}' lacks the permission '{permission}'.")
