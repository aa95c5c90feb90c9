"""Rules about prefixes: what of a prompt can be kept, and how much of it."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import takewhile

from sqlalchemy.exc import IntegrityError

from loraplex_engine.client import EngineClient
from loraplex_engine.messages import Hello
from loraplex_platform.admission.stock import prefix_tokens_of
from loraplex_platform.audit.trail import changing
from loraplex_platform.catalogue.repository import AdapterRepository
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import (
    Conflict,
    InvalidRequest,
    ModelNotFound,
    NotFound,
    PermissionDenied,
    QuotaExceeded,
)
from loraplex_platform.kit.ids import new_id
from loraplex_platform.kit.pagination import Page, page_of
from loraplex_platform.kit.principal import Actor, Principal
from loraplex_platform.openai.generation import hello_of
from loraplex_platform.openai.resolver import check_region
from loraplex_platform.openai.served_model import ServedModel, ServedModels
from loraplex_platform.prefixes.models import Prefix
from loraplex_platform.prefixes.repository import PrefixRepository
from loraplex_platform.prefixes.schemas import PrefixObject, PrefixRequest
from loraplex_platform.prefixes.warmth import Warmth

CONTINUATIONS = ("a", " Z")  # what they have in common with a prefix before them is the prefix's


class PrefixService:
    """What a tenant may do with its prefixes."""

    def __init__(
        self,
        database: Database,
        engine: EngineClient,
        models: ServedModels,
        warmth: Warmth,
        clock: Clock,
        *,
        wait_s: float,
        region: str,
    ) -> None:
        self._database = database
        self._engine = engine
        self._models = models
        self._warmth = warmth
        self._clock = clock
        self._wait_s = wait_s
        self._region = region

    async def create(
        self, principal: Principal, request: PrefixRequest, *, by: Actor
    ) -> PrefixObject:
        if not principal.may_use(request.model):
            raise PermissionDenied(f"This key may not use '{request.model}'.", param="model")
        check_region(principal, self._region)
        hello = await hello_of(self._engine, self._wait_s)
        model = await self._model_of(principal, request.model)
        token_ids = await asyncio.to_thread(_token_ids, request, model, hello)
        prefix = Prefix(
            id=new_id("pfx"),
            tenant_id=principal.tenant_id,
            name=request.name,
            model=request.model,
            num_tokens=len(token_ids),
            token_ids=token_ids,
            created_at=self._clock.now(),
        )
        try:
            async with changing(self._database, by, self._clock, of=principal) as session:
                prefixes = PrefixRepository(session)
                await self._check_model(AdapterRepository(session), principal, request.model)
                quota = await prefix_tokens_of(session, principal.tenant_id)
                used = await prefixes.tokens_of(principal)
                if used + len(token_ids) > quota:
                    raise QuotaExceeded(
                        f"{len(token_ids)} more registered prefix tokens do not fit: "
                        f"{used} of {quota} are in use."
                    )
                await prefixes.add(prefix)
        except IntegrityError as error:
            raise Conflict(f"There is a prefix '{request.name}'.", param="name") from error
        await self._warmth.update()
        return PrefixObject.of(prefix, None)

    async def page(
        self, principal: Principal, *, after: str | None, limit: int
    ) -> Page[PrefixObject]:
        """The oldest first."""
        async with self._database.reading(principal) as session:
            own = await PrefixRepository(session).page(principal, after, limit + 1)
        return page_of(self._seen(own), limit)

    async def get(self, principal: Principal, id_or_name: str) -> PrefixObject:
        async with self._database.reading(principal) as session:
            prefix = await _found(PrefixRepository(session), principal, id_or_name)
        return self._seen([prefix])[0]

    async def delete(self, principal: Principal, id_or_name: str, *, by: Actor) -> str:
        """Its blocks become like any others; returns its id."""
        async with changing(self._database, by, self._clock, of=principal) as session:
            prefixes = PrefixRepository(session)
            prefix = await _found(prefixes, principal, id_or_name)
            await prefixes.remove(prefix)
        await self._warmth.update()
        return prefix.id

    def _seen(self, prefixes: Sequence[Prefix]) -> list[PrefixObject]:
        """With what the engine says of them."""
        stats = self._engine.stats
        seen = {} if stats is None else {s.prefix_id: s for s in stats.prefixes}
        return [PrefixObject.of(prefix, seen.get(prefix.id)) for prefix in prefixes]

    async def _check_model(
        self, adapters: AdapterRepository, principal: Principal, model: str
    ) -> None:
        if model != self._models.base.id and await adapters.named(principal, model) is None:
            raise ModelNotFound(model)

    async def _model_of(self, principal: Principal, name: str) -> ServedModel:
        """As the version has it that the name stands for now."""
        if name == self._models.base.id:
            return self._models.base
        async with self._database.reading(principal) as session:
            adapter = await AdapterRepository(session).named(principal, name)
        if adapter is None:
            raise ModelNotFound(name)
        return self._models.of(adapter.version)


def _token_ids(request: PrefixRequest, model: ServedModel, hello: Hello) -> list[int]:
    """The whole blocks that every prompt with this beginning shares."""
    encode = _encoder(request, model)
    shared = zip(*map(encode, CONTINUATIONS), strict=False)
    common = [pair[0] for pair in takewhile(lambda pair: pair[0] == pair[1], shared)]
    num_tokens = len(common) // hello.block_size * hello.block_size
    if not 0 < num_tokens < hello.max_model_len:
        raise InvalidRequest(
            f"A prefix has {hello.block_size} to {hello.max_model_len - 1} tokens, "
            f"this one has {len(common)}.",
            param="messages" if request.messages else "prompt",
        )
    return common[:num_tokens]


def _encoder(request: PrefixRequest, model: ServedModel) -> Callable[[str], tuple[int, ...]]:
    text, turns = request.prompt, request.turns()
    if text is not None:
        return lambda more: model.encode(text + more, add_special_tokens=True)

    def encode(more: str) -> tuple[int, ...]:
        rendered = model.render([*turns, {"role": "user", "content": more}])
        return model.encode(rendered, add_special_tokens=False)

    return encode


async def _found(prefixes: PrefixRepository, principal: Principal, id_or_name: str) -> Prefix:
    prefix = await prefixes.find(principal, id_or_name)
    if prefix is None:
        raise NotFound(f"There is no prefix {id_or_name!r}.", param="prefix_id")
    return prefix
