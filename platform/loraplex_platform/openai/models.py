"""`/v1/models`: the base model and the tenant's own adapters."""

from datetime import datetime

from loraplex_platform.catalogue.repository import AdapterRepository
from loraplex_platform.db.database import Database
from loraplex_platform.kit.errors import ModelNotFound
from loraplex_platform.kit.principal import Principal
from loraplex_platform.openai.answers import Json
from loraplex_platform.openai.served_model import ServedModel


class ModelService:
    """What a tenant may name in `model`."""

    def __init__(self, database: Database, model: ServedModel, started_at: datetime) -> None:
        self._database = database
        self._base = _model(model.id, started_at, "loraplex")

    async def list(self, principal: Principal) -> list[Json]:
        async with self._database.reading(principal) as session:
            adapters = await AdapterRepository(session).names_page(principal)
        own = [_model(a.name, a.created_at, principal.tenant_id) for a in adapters if a.is_enabled]
        return [model for model in [self._base, *own] if principal.may_use(model["id"])]

    async def get(self, principal: Principal, model_id: str) -> Json:
        if not principal.may_use(model_id) or "\0" in model_id:  # PostgreSQL takes no NUL
            raise ModelNotFound(model_id)
        if model_id == self._base["id"]:
            return self._base
        async with self._database.reading(principal) as session:
            adapter = await AdapterRepository(session).name(principal, model_id)
        if adapter is None or not adapter.is_enabled:
            raise ModelNotFound(model_id)
        return _model(adapter.name, adapter.created_at, principal.tenant_id)


def _model(name: str, created_at: datetime, owner: str) -> Json:
    return {
        "id": name,
        "object": "model",
        "created": int(created_at.timestamp()),
        "owned_by": owner,
    }
