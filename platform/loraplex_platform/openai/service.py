"""From a parsed request to a generation at work."""

import asyncio
from collections.abc import Callable
from typing import Literal, TypeVar

from loraplex_adapters.store import AdapterStore
from loraplex_engine.client import EngineClient
from loraplex_engine.messages import Hello, Tier
from loraplex_platform.admission.limiter import Demand, Limiter
from loraplex_platform.admission.ticket import Ticket, admit
from loraplex_platform.catalogue.routes import Routes
from loraplex_platform.config import Settings
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.errors import ContextLengthExceeded, InvalidRequest
from loraplex_platform.kit.ids import new_id
from loraplex_platform.kit.secrets import Secrets
from loraplex_platform.kit.tasks import Tasks
from loraplex_platform.observability.metrics import Metrics
from loraplex_platform.openai.answers import ChatAnswer, CompletionAnswer, Head, Shape
from loraplex_platform.openai.cache_scope import CacheScopes
from loraplex_platform.openai.generation import Generation, Settle, hello_of
from loraplex_platform.openai.keeping import Keeping
from loraplex_platform.openai.live import LiveRequests
from loraplex_platform.openai.order import Caller, Order
from loraplex_platform.openai.reply import Reply
from loraplex_platform.openai.resolver import Resolver, check_region
from loraplex_platform.openai.schemas import ChatRequest, CompletionRequest, Prompt
from loraplex_platform.openai.served_model import ServedModel, ServedModels
from loraplex_platform.openai.settlement import Circumstances, Settlement
from loraplex_platform.openai.tally import Tally
from loraplex_platform.prompts.service import PromptService
from loraplex_platform.usage.meter import Recorder
from loraplex_platform.usage.prices import BASE, Sku

Request = TypeVar("Request", ChatRequest, CompletionRequest)
Encode = Callable[[Request, ServedModel, str | None], list[tuple[int, ...]]]
MOST_TOKENS = 2**31  # of any vocabulary
SHORT_CHARS = 1000  # encoded at once: a thread would cost more than it saves
LONG_CHARS = 65_536
SERVICE_TIER_OF: dict[Tier, str] = {
    "batch": "flex",
    "standard": "default",
    "interactive": "priority",
}


class InferenceService:
    """Holds no database session while the engine works."""

    def __init__(
        self,
        *,
        settings: Settings,
        engine: EngineClient,
        model: ServedModel,
        database: Database,
        limiter: Limiter,
        recorder: Recorder,
        metrics: Metrics,
        secrets: Secrets,
        clock: Clock,
        routes: Routes | None = None,
        prompts: PromptService | None = None,  # None: nothing is ever kept
    ) -> None:
        self._settings = settings
        self._engine = engine
        self.models = ServedModels(model, AdapterStore(settings.adapter_store))
        self._limiter = limiter
        self._metrics = metrics
        self._recorder = recorder
        self._clock = clock
        self._prompts = prompts
        self._scopes = CacheScopes(secrets)
        self._long_texts = asyncio.Lock()
        self._resolver = Resolver(database, model.id, clock, routes)
        self.live = LiveRequests(database)
        self.tasks = Tasks()

    async def chat(self, caller: Caller, request: ChatRequest) -> Reply:
        """Starts the answer to a conversation, or raises what is wrong with the request."""
        request.turns()  # raises before anything else is looked at

        def encode(
            request: ChatRequest, model: ServedModel, template: str | None
        ) -> list[tuple[int, ...]]:
            text = model.render(request.turns(), template)
            return [model.encode(text, add_special_tokens=False)]

        return await self._start(await self._order(caller, request, encode))

    async def complete(self, caller: Caller, request: CompletionRequest) -> Reply:
        """Starts the continuation of one or several prompts."""
        request.prompts(MOST_TOKENS)  # raises before anything else is looked at

        def encode(
            request: CompletionRequest, model: ServedModel, _: str | None
        ) -> list[tuple[int, ...]]:
            return [_token_ids(prompt, model) for prompt in request.prompts(model.vocab_size)]

        return await self._start(await self._order(caller, request, encode))

    async def _order(
        self,
        caller: Caller,
        request: Request,
        encode: Encode[Request],
    ) -> Order:
        started_at, started_s = self._clock.now(), self._clock.monotonic()
        check_region(caller.principal, self._settings.region)
        target = await self._resolver.resolve(caller.principal, request)
        request = request.with_defaults(target.defaults)
        hello = await hello_of(self._engine, self._settings.engine_wait_s)
        param: Literal["messages", "prompt"] = (
            "messages" if isinstance(request, ChatRequest) else "prompt"
        )
        model = self.models.of(target.adapter_version)
        _check_size(request, model, hello, param)
        template = target.defaults.chat_template
        prompts = await self._tokenise(request, model, template, encode)
        if not all(prompts):
            raise InvalidRequest("The prompt is empty.", param=param, code="invalid_value")
        max_tokens = _max_tokens(request.token_limit, prompts, hello, param)
        if (request.min_tokens or 0) > max_tokens:
            raise InvalidRequest(
                f"'min_tokens' exceeds the {max_tokens} tokens that may be generated.",
                param="min_tokens",
                code="invalid_value",
            )
        sampling = request.sampling(max_tokens, model.vocab_size, request.num_logprobs)
        return Order(
            caller, request, target, model, hello, prompts, sampling, started_at, started_s
        )

    async def _tokenise(
        self,
        request: Request,
        model: ServedModel,
        template: str | None,
        encode: Encode[Request],
    ) -> list[tuple[int, ...]]:
        """Short texts at once, others in a thread; long ones in turn, so that others find one."""
        num_chars = sum(request.text_lengths)
        if num_chars <= SHORT_CHARS and template is None:  # a tenant's own may take its time
            return encode(request, model, template)
        if num_chars < LONG_CHARS:
            return await asyncio.to_thread(encode, request, model, template)
        async with self._long_texts:
            return await asyncio.to_thread(encode, request, model, template)

    async def _start(self, order: Order) -> Reply:
        demand = Demand(
            request_id=order.caller.request_id,
            principal=order.caller.principal,
            model=order.request.model,
            tier=order.target.tier,
            prompt_tokens=sum(map(len, order.prompts)),
            max_tokens=order.sampling.max_tokens * order.num_sequences,
            sku=Sku(self.models.base.id, order.target.adapter_version or BASE, order.target.tier),
            started_at=order.started_at,
        )
        ticket = await admit(self._limiter, demand)
        request = order.request
        about = Circumstances(
            request_id=order.caller.request_id,
            principal=order.caller.principal,
            endpoint="/v1/chat/completions" if order.is_chat else "/v1/completions",
            model=request.model,
            base_model=self.models.base.id,
            adapter_version=order.target.adapter_version,
            tier=order.target.tier,
            region=self._settings.region,
            started_at=order.started_at,
            started_s=order.started_s,
            job_id=order.caller.job_id,
            end_user=request.user,
            client_request_id=order.caller.client_request_id,
            metadata=request.metadata,
        )
        return self._run(order, ticket, about)

    def _run(self, order: Order, ticket: Ticket, about: Circumstances) -> Reply:
        requests = order.sequences(self._scopes.of(order.caller.principal.tenant_id))
        settle = self._settle(order, ticket, about)
        tally = Tally.of(
            requests, order.request.num_choices, keeps_text=isinstance(settle, Keeping)
        )
        generation = Generation(
            self._engine,
            requests,
            tally,
            settle,
            self._clock,
            self.tasks,
            wait_s=self._settings.engine_wait_s,
        )
        self.live.add(order.caller.principal.tenant_id, generation)
        shape = Shape(
            includes_usage=order.request.includes_usage,
            returns_token_ids=bool(order.request.return_token_ids),
            has_logprobs=order.sampling.logprobs is not None,
        )
        head = Head(
            id=new_id("chatcmpl" if order.is_chat else "cmpl"),
            created=int(about.started_at.timestamp()),
            model=order.request.model,
            service_tier=SERVICE_TIER_OF[order.target.tier],
            system_fingerprint=f"fp_{order.hello.model_hash[:12]}",
        )
        prompts = [order.prompt_of(index) for index in range(order.num_sequences)]
        answer = (ChatAnswer if order.is_chat else CompletionAnswer)(
            head, shape, order.model, prompts
        )
        return Reply(generation, answer, tally, ticket.headers, includes_usage=shape.includes_usage)

    def _settle(self, order: Order, ticket: Ticket, about: Circumstances) -> Settle:
        settle = Settlement(about, ticket, self._recorder, self._metrics, self._clock)
        if self._prompts is None or not order.target.stores_prompts:
            return settle
        return Keeping(
            settle, self._prompts, about.principal, about.request_id, about.model, order.asked
        )


def _max_tokens(limit: int | None, prompts: list[tuple[int, ...]], hello: Hello, param: str) -> int:
    """What may be generated after the longest prompt; raises when the context has no room."""
    longest = max(map(len, prompts))
    room = hello.max_model_len - longest
    if room < (limit or 1):
        wanted = f" and {limit} in the completion" if limit else ""
        raise ContextLengthExceeded(
            f"This model's maximum context length is {hello.max_model_len} tokens. However, your "
            f"request has {longest} tokens in the {param}{wanted}.",
            param=param,
        )
    return limit or room


def _token_ids(prompt: Prompt, model: ServedModel) -> tuple[int, ...]:
    return prompt if isinstance(prompt, tuple) else model.encode(prompt, add_special_tokens=True)


def _check_size(
    request: ChatRequest | CompletionRequest, model: ServedModel, hello: Hello, param: str
) -> None:
    """A text that cannot fit is refused before minutes are spent on its tokens."""
    longest = max(request.text_lengths, default=0)
    fewest = max(request.num_turns, model.fewest_tokens(longest))
    if fewest >= hello.max_model_len:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {hello.max_model_len} tokens. However, "
            f"your request has at least {fewest} tokens in the {param}.",
            param=param,
        )
