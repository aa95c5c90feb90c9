"""One sequence: its tokens, how far they are computed, and where its KV lives."""

from dataclasses import dataclass, field

from loraplex_engine.messages import SamplingParams, SequencePhase, Tier


@dataclass(slots=True, eq=False)
class Sequence:
    """Counts let plan N+1 be made before the tokens of plan N exist.

    computed <= scheduled <= num_tokens, where num_tokens counts the sampled tokens that a step in
    flight will append (`num_pending`).
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    tenant: str
    arrival_s: float
    tier: Tier = "standard"
    adapter: str | None = None
    cache_root: bytes = b""
    deadline_s: float | None = None
    parent_id: str | None = None
    job_id: str | None = None
    eos_token_ids: frozenset[int] = frozenset()  # end it, unless they are ignored

    output_ids: list[int] = field(default_factory=list)
    block_table: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)  # of full blocks of known tokens
    num_computed: int = 0  # tokens whose KV is in the cache
    num_scheduled: int = 0  # computed, or being computed by a step in flight
    num_pending: int = 0  # tokens that steps in flight will sample
    num_cached: int = 0  # prompt tokens taken from the prefix cache at first admission
    num_recomputed: int = 0  # tokens computed again after a preemption
    num_preemptions: int = 0
    phase: SequencePhase = "waiting"
    is_finished: bool = False
    admitted_s: float | None = None
    first_token_s: float | None = None
    engine_s: float = 0.0

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_ids)

    @property
    def num_known(self) -> int:
        """Tokens whose ids are known."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def num_tokens(self) -> int:
        """Known tokens and those that steps in flight will append."""
        return self.num_known + self.num_pending

    @property
    def num_todo(self) -> int:
        """Tokens that are neither computed nor in flight: 1 for a decode, more for a prefill."""
        return self.num_tokens - self.num_scheduled

    @property
    def is_decode(self) -> bool:
        """Whether the next step only extends it by one token."""
        return bool(self.output_ids or self.num_pending) and self.num_todo == 1

    @property
    def max_num_tokens(self) -> int:
        """The most tokens it can ever hold in the KV cache (its last sampled token needs none)."""
        return len(self.prompt_ids) + self.sampling.max_tokens - 1

    def token_at(self, position: int) -> int:
        prompt = len(self.prompt_ids)
        return (
            self.prompt_ids[position] if position < prompt else self.output_ids[position - prompt]
        )

    def known_ids(self, start: int, stop: int) -> list[int]:
        """Known token ids of positions [start, stop); positions in flight are left out."""
        prompt = len(self.prompt_ids)
        ids = list(self.prompt_ids[start:stop])
        ids += self.output_ids[max(0, start - prompt) : max(0, stop - prompt)]
        return ids
