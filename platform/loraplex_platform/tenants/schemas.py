"""What is said about tenants."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class TenantChange:
    """New values for a tenant's settings; None leaves a setting as it is."""

    weight: float | None = None
    max_tier: str | None = None
    max_running: int | None = None
    kv_share: float | None = None

    def given(self) -> dict[str, object]:
        return {name: value for name, value in asdict(self).items() if value is not None}
