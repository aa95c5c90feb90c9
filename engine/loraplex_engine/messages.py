"""What crosses the engine's boundary: frozen dataclasses, no torch, no msgspec, no names of tenants' things.

Down (client to engine): Generate, Abort, SetTenant, RegisterPrefix, DropPrefix, PreloadAdapter,
PinAdapter, DropAdapter, CheckAdapter, Explain, Drain.
Up (engine to client): Hello, TokenEvent, Finished, AdapterFailed, Explanation, EngineStats.
All times are seconds; a deadline crosses processes as *remaining* seconds, never as a clock reading.
"""

from dataclasses import dataclass
from typing import Literal

from loraplex_adapters.report import ParityCheck
from loraplex_adapters.tiers import TierStats

Tier = Literal["interactive", "standard", "batch"]
TIERS: tuple[Tier, ...] = ("interactive", "standard", "batch")
FinishReason = Literal["stop", "length", "abort", "error"]
WaitReason = Literal["kv", "slot", "loading", "quota", "priority", "prefix"]
SequencePhase = Literal["waiting", "loading", "prefill", "decode", "parked"]
ErrorCode = Literal[
    "bad_request",
    "context_too_long",
    "unknown_adapter",
    "overloaded",
    "timeout",
    "unavailable",
    "internal",
]

PROTOCOL_VERSION = 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn; every value is validated and filled in by the API, seed included."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 keeps all
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0  # chosen by the API when the client gave none, so that a retry is identical
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # None: none; k: the sampled token's and the k most likely ones'
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TenantShare:
    """A tenant's standing in the scheduler; soft caps bind only while somebody else waits."""

    tenant: str
    weight: float = 1.0
    max_running: int | None = None  # sequences
    kv_share: float | None = None  # of all blocks, 0..1


@dataclass(frozen=True, slots=True)
class Generate:
    """One sequence to generate. `n > 1` is sent as n messages with one parent_id."""

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    tenant: str
    project: str
    cache_scope: str  # hex HMAC made by the server: separates one tenant's prefixes from another's
    tier: Tier = "standard"
    share: TenantShare | None = None  # None: keep what the engine knows of this tenant
    adapter: str | None = None  # adapter version: sha256 of its content; None is the base model
    parent_id: str | None = None
    index: int = 0
    remaining_s: float | None = None  # time left to the deadline
    job_id: str | None = None  # the batch job this belongs to


@dataclass(frozen=True, slots=True)
class Abort:
    """Stop a request; unknown ids are ignored. Its blocks return after the step in flight."""

    request_id: str


@dataclass(frozen=True, slots=True)
class SetTenant:
    """Change a tenant's share, live."""

    share: TenantShare


@dataclass(frozen=True, slots=True)
class RegisterPrefix:
    """Keep the KV of this prefix warm for one tenant."""

    prefix_id: str
    tenant: str
    cache_scope: str
    adapter: str | None
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DropPrefix:
    """Stop keeping a registered prefix warm."""

    prefix_id: str


@dataclass(frozen=True, slots=True)
class PreloadAdapter:
    """Load a version into the host tier, and into a slot when one is idle."""

    adapter: str
    tenant: str


@dataclass(frozen=True, slots=True)
class PinAdapter:
    """Keep a version in its slot (pinned) or let it go (not pinned)."""

    adapter: str
    tenant: str
    pinned: bool


@dataclass(frozen=True, slots=True)
class DropAdapter:
    """Forget a version in all tiers once its running requests end; what is left then is ended."""

    adapter: str
    remaining_s: float | None = None  # None: they may take as long as they take


@dataclass(frozen=True, slots=True)
class CheckAdapter:
    """Test a version's parity in the background; EngineStats.adapter_checks has the result."""

    adapter: str


@dataclass(frozen=True, slots=True)
class Explain:
    """Ask why a request waits; answered with an Explanation."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Finish what runs within this time, take nothing new, then exit."""

    remaining_s: float


Command = (
    Generate
    | Abort
    | SetTenant
    | RegisterPrefix
    | DropPrefix
    | PreloadAdapter
    | PinAdapter
    | DropAdapter
    | CheckAdapter
    | Explain
    | Drain
)


@dataclass(frozen=True, slots=True)
class Hello:
    """The engine's first word to each client."""

    protocol: int
    model_hash: str
    max_model_len: int  # tokens
    max_lora_rank: int
    max_loras: int  # slots
    num_blocks: int
    block_size: int  # tokens
    device: str
    dtype: str


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probability of a token and the most likely alternatives, most likely first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """New tokens of one sequence. `text` holds back what may still become a stop string."""

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The last word on a sequence; exactly one is sent for each Generate that was accepted."""

    request_id: str
    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    recomputed_tokens: int
    queue_s: float
    ttft_s: float | None  # None: ended before its first token
    total_s: float
    engine_s: float  # this sequence's share of step time
    tier: Tier
    stop_reason: str | int | None = None  # the stop string or token that matched
    error: ErrorCode | None = None
    message: str | None = None
    retry_after_s: float | None = None  # with "overloaded": when the queue is short enough again


@dataclass(frozen=True, slots=True)
class AdapterFailed:
    """A version could not be loaded; its waiting requests end with an error."""

    adapter: str
    reason: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a request waits; reason is None when it does not wait (or is unknown)."""

    request_id: str
    phase: SequencePhase | None
    reason: WaitReason | None
    ahead: int  # sequences that will be started before it
    expected_s: float | None  # until it starts
    detail: str = ""
    tenant: str | None = None  # whose it is; None: the engine does not know the id


@dataclass(frozen=True, slots=True)
class PrefixStats:
    """A registered prefix, and what it did since it was registered."""

    prefix_id: str
    tenant: str
    num_tokens: int  # in whole blocks: what can be kept
    warm_tokens: int  # of these, in the cache
    requests: int  # that began with it
    hits: int  # of these, that found all of it
    saved_tokens: int  # that needed no computing


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """How well the plans fit what happened."""

    schedule_s: float = 0.0  # smoothed time to make a plan
    forecast_error: float = 0.0  # smoothed |step / prediction - 1|
    slow_steps: int = 0  # that took over five times their prediction
    offloads: int = 0  # preemptions that kept their KV on the host
    jain: float = 1.0  # fairness of weighted service among tenants that wait; 1 is equal
    gap_ratio: float = 0.0  # service gap of tenants that wait over its bound; at most 1
    bypasses: int = 0  # starts that passed a request whose turn it was and that could not start
    drains: int = 0  # adapters whose slot was emptied for somebody, as their requests ended
    lends: int = 0  # adapters whose slot was lent by streams far ahead of their deadlines


@dataclass(frozen=True, slots=True)
class PromiseStats:
    """What became of a live tier's targets: first token, time per token after it, both."""

    tier: Tier
    requests: int = 0  # that ended by themselves, or were refused or ended for lack of time
    ttft_kept: int = 0
    tpot_kept: int = 0
    kept: int = 0  # both
    good_tokens: int = 0  # generated by those that kept both


@dataclass(frozen=True, slots=True)
class SequenceStats:
    """One live sequence as the engine sees it."""

    request_id: str
    tenant: str
    tier: Tier
    adapter: str | None
    phase: SequencePhase
    reason: WaitReason | None
    prompt_tokens: int
    completion_tokens: int
    waited_s: float
    job_id: str | None = None


@dataclass(frozen=True, slots=True)
class TokenCounters:
    """Totals since the engine started, by kind."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    recomputed: int = 0
    discarded: int = 0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The one stream of truth, published at least every 500 ms."""

    engine_id: str
    sequence_number: int
    engine_clock_s: float
    running: int
    waiting: int
    sequences: tuple[SequenceStats, ...]
    free_blocks: int  # including evictable cached ones
    num_blocks: int
    free_slots: int
    num_slots: int
    resident_adapters: tuple[str, ...]
    step_s: float  # smoothed duration of a step
    steps: int
    tokens: TokenCounters
    tokens_by_tenant: tuple[tuple[str, TokenCounters], ...] = ()
    preemptions: int = 0
    spare: float = 0.0  # 0..1, the part of the step budget that live traffic leaves
    draining: bool = False
    scheduler: SchedulerStats = SchedulerStats()
    prefixes: tuple[PrefixStats, ...] = ()
    promises: tuple[PromiseStats, ...] = ()  # of the tiers that have one
    busy_s: tuple[tuple[Tier, float], ...] = ()  # step time by tier, since the engine started
    adapter_tiers: tuple[TierStats, ...] = ()  # device, host, disk
    adapter_checks: tuple[ParityCheck, ...] = ()  # the latest self-tests


Event = Hello | TokenEvent | Finished | AdapterFailed | Explanation | EngineStats
