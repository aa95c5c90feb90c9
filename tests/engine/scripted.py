"""An engine without a model: the loop, the policy and the books are real, the tokens follow a rule."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

from tests.engine.memory_adapters import MemoryAdapters

from loraplex_engine.core import Engine
from loraplex_engine.intake import Served
from loraplex_engine.messages import (
    Event,
    Finished,
    Generate,
    Hello,
    SamplingParams,
    Tier,
    TokenEvent,
)
from loraplex_engine.prefix_cache import PagedKv
from loraplex_engine.runner import SampledTokens
from loraplex_engine.scheduling.config import SchedulerConfig, default_targets
from loraplex_engine.scheduling.policies import PolicyName, make_policy
from loraplex_engine.scheduling.policy import BlockCopy, StepPlan

VOCAB_SIZE = 128
EOS = 0


class Letters:
    """Token i is the character i."""

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


@dataclass
class ScriptedRunner:
    """Says `rule(sequence)`; raises when told to."""

    rule: Callable[[Any], int]
    faults: list[str] = field(default_factory=list)  # "launch" or "collect", one per step
    plans: list[StepPlan] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)

    def copy_blocks(self, copies: list[BlockCopy]) -> None:
        self.copies += copies

    def launch(self, plan: StepPlan) -> StepPlan:
        self.plans.append(plan)
        self._fault("launch")
        return plan

    def collect(self, handle: StepPlan) -> list[SampledTokens]:
        self._fault("collect")
        return [
            SampledTokens((self.rule(item.seq),)) if item.samples else SampledTokens()
            for item in handle.items
        ]

    def _fault(self, where: str) -> None:
        if self.faults and self.faults[0] == where:
            raise RuntimeError(self.faults.pop(0))


@dataclass
class Clock:
    """Time that passes only when told to, and a little with each look."""

    now: float = 100.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


class Scripted:
    """An engine over a ScriptedRunner, with all it said so far."""

    def __init__(
        self,
        rule: Callable[[Any], int] = lambda seq: ord("a") + len(seq.output_ids),
        *,
        num_blocks: int = 16,
        block_size: int = 4,
        max_num_seqs: int = 4,
        max_num_batched_tokens: int = 8,
        adapters: MemoryAdapters | None = None,
        policy: PolicyName = "fcfs",
        vocab_size: int = VOCAB_SIZE,
        abort_tiers: Collection[Tier] = (),
    ) -> None:
        self.kv = PagedKv(num_blocks, block_size)
        self.adapters = adapters or MemoryAdapters((), num_slots=1)
        self.runner = ScriptedRunner(rule)
        self.clock = Clock()
        hello = Hello(
            protocol=1,
            model_hash="m",
            max_model_len=num_blocks * block_size,
            max_lora_rank=8,
            max_loras=self.adapters.num_free_slots,
            num_blocks=num_blocks,
            block_size=block_size,
            device="cpu",
            dtype="float32",
        )
        limits = SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            targets={
                tier: replace(target, may_abort=tier in abort_tiers)
                for tier, target in default_targets().items()
            },
        )
        served = Served(
            "engine", hello, vocab_size, frozenset([EOS]), Letters(), max_num_batched_tokens
        )
        self.engine = Engine(
            served,
            self.runner,
            make_policy(policy, self.kv, self.adapters, limits),
            self.kv,
            self.adapters,
            self.clock,
        )
        self.events: list[Event] = []

    def step(self) -> list[Event]:
        events = self.engine.step()
        self.events += events
        return events

    def run(self, *requests: Generate, max_steps: int = 500) -> None:
        """Submit and step until nothing is left."""
        for request in requests:
            self.engine.submit(request)
        for _ in range(max_steps):
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError("the engine does not come to an end")

    def finished(self, request_id: str = "r") -> Finished:
        (event,) = [
            e for e in self.events if isinstance(e, Finished) and e.request_id == request_id
        ]
        return event

    def text(self, request_id: str = "r") -> str:
        tokens = [e for e in self.events if isinstance(e, TokenEvent)]
        return "".join(e.text for e in tokens if e.request_id == request_id)

    def check_books(self) -> None:
        self.kv.check_integrity([*self.engine.policy.running, *self.engine.policy.waiting])


def request(
    request_id: str = "r", prompt: str = "hello", *, adapter: str | None = None, **sampling: Any
) -> Generate:
    defaults = SamplingParams(max_tokens=5, temperature=0.0)
    return Generate(
        request_id=request_id,
        prompt_ids=tuple(map(ord, prompt)),
        sampling=replace(defaults, **sampling),
        tenant="acme",
        project="p",
        cache_scope="scope",
        adapter=adapter,
    )
