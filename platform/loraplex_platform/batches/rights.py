"""The principal on whose behalf a job runs, long after its request has ended."""

from dataclasses import fields
from typing import Any

from loraplex_platform.batches.models import Batch
from loraplex_platform.kit.principal import Principal

IDS = ("tenant_id", "project_id", "key_id")


def rights_of(principal: Principal) -> dict[str, Any]:
    """What a principal may do, as JSON: sets of words, or None where nothing binds."""
    names = [field.name for field in fields(principal) if field.name not in IDS]
    values = {name: getattr(principal, name) for name in names}
    return {name: None if value is None else sorted(value) for name, value in values.items()}


def principal_of(batch: Batch) -> Principal:
    """The principal that made the job."""
    sets: dict[str, Any] = {
        name: None if words is None else frozenset(words) for name, words in batch.rights.items()
    }
    return Principal(batch.tenant_id, batch.project_id, batch.key_id, **sets)
