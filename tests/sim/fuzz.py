"""A loop that does to a policy all that an engine may do, in any order, and keeps real KV contents."""

import random
from collections import deque

from tests.sim.simulator import SimulatedSlots

from loraplex_engine.messages import TIERS, SamplingParams, TenantShare, Tier
from loraplex_engine.prefix_cache import PagedKv
from loraplex_engine.scheduling.config import SchedulerConfig
from loraplex_engine.scheduling.hfs import Hfs
from loraplex_engine.scheduling.policy import StepPlan
from loraplex_engine.sequence import Sequence

BLOCK = 4
NUM_BLOCKS = 24
MAX_STEPS_TO_DRAIN = 1500


def step_s(plan: StepPlan) -> float:
    return 0.005 + 0.001 * plan.num_tokens


class Fuzz:
    """Random submits, cancels, ends, failed loads and steps, with up to one step in flight."""

    def __init__(self, seed: int, config: SchedulerConfig | None = None) -> None:
        self.rng = random.Random(seed)
        self.kv = PagedKv(NUM_BLOCKS, BLOCK, caching=self.rng.random() < 0.7)
        self.slots = SimulatedSlots(2, lambda adapter: 0.02)
        self.config = config or SchedulerConfig(
            max_num_seqs=6,
            num_host_blocks=self.rng.choice((0, 5, 40)),
            watermark=self.rng.choice((0.0, 0.1)),
            output_quantile=self.rng.choice((0.1, 0.7)),
            min_run_steps=4,
            lend_slack_s=self.rng.choice((0.02, 0.25)),
            max_pause_s=self.rng.choice((0.03, 1.0)),
        )
        self.policy = Hfs(self.kv, self.slots, self.config)
        self.depth = self.rng.randint(0, 1)  # steps in flight when the next one is planned
        self.flight: deque[StepPlan] = deque()
        self.eos_share = 0.03
        self.now = 0.0
        self.alive: list[Sequence] = []
        self.ended: dict[str, str] = {}
        self.charged = 0.0
        self.device: dict[tuple[int, int], int] = {}  # (block, offset) -> what is stored there
        self.host: dict[tuple[int, int], int] = {}
        self.host_used = 0
        self._number = 0

    def act(self) -> None:
        """One random thing happens."""
        self.rng.choices(
            (self.submit, self.cancel, self.step, self.fail_load, self.reshare),
            (4, 1, 12, 0.3, 0.3),
        )[0]()
        self.check()

    def submit(self) -> None:
        rng, number = self.rng, self._number + 1
        prompt = rng.randint(1, 30)
        shared = rng.choice((0, prompt // 2, prompt - 1))
        own = (number * 100 + i for i in range(prompt - shared))
        self.send(
            (*range(shared), *own),
            rng.randint(1, 24),
            tenant=rng.choice("abc"),
            tier=rng.choice(TIERS),
            adapter=rng.choice((None, None, "x", "y", "z")),
            deadline_s=self.now + 5 if rng.random() < 0.1 else None,
        )

    def send(
        self,
        prompt_ids: tuple[int, ...],
        max_tokens: int,
        *,
        tenant: str = "a",
        tier: Tier = "batch",
        adapter: str | None = None,
        deadline_s: float | None = None,
    ) -> Sequence:
        self._number += 1
        seq = Sequence(
            request_id=f"r{self._number}",
            prompt_ids=prompt_ids,
            sampling=SamplingParams(max_tokens=max_tokens),
            tenant=tenant,
            arrival_s=self.now,
            tier=tier,
            adapter=adapter,
            cache_root=f"{tenant}/{adapter}".encode(),
            deadline_s=deadline_s,
        )
        self.alive.append(seq)
        self.policy.add(seq, self.now)
        return seq

    def cancel(self) -> None:
        if self.alive:
            self._end(self.rng.choice(self.alive), "abort")

    def fail_load(self) -> None:
        """A load fails: the slot stays empty and those who need the adapter end, paused ones too."""
        if self.slots.loading:
            adapter = self.rng.choice(sorted(self.slots.loading))
            del self.slots.loading[adapter]
            for seq in [seq for seq in self.alive if seq.adapter == adapter]:
                self._end(seq, "error")

    def reshare(self) -> None:
        rng = self.rng
        cap = rng.choice((None, 1, 2))
        self.policy.set_share(
            TenantShare(rng.choice("abc"), rng.choice((0.5, 1, 4)), cap, cap and 0.5)
        )

    def step(self) -> None:
        self.slots.advance(self.now)
        plan = self.policy.schedule(self.now)
        self.check_plan(plan)
        for preemption in plan.preemptions:
            if preemption.mode == "abort":
                self._end(preemption.seq, "preempted")
        for adapter in plan.loads:
            self.slots.load(adapter, self.now)
        self.flight.append(plan)
        self.now += step_s(plan)
        if len(self.flight) > self.depth:
            self.complete(self.flight.popleft())

    def complete(self, plan: StepPlan) -> None:
        """The forward pass of a plan, and what the loop does with its tokens."""
        self._copy(plan)
        for seq, start, num_tokens, samples in plan.items:
            if seq.is_finished:
                continue
            self._compute(seq, start, num_tokens)
            seq.num_computed = start + num_tokens
            self.charged += 2 if num_tokens == 1 and seq.output_ids else num_tokens
            if samples:
                seq.num_pending -= 1
                seq.output_ids.append(self._number * 7 + len(seq.output_ids))
                is_last = len(seq.output_ids) >= seq.sampling.max_tokens
                if is_last or self.rng.random() < self.eos_share:
                    self._end(seq, "length" if is_last else "stop")
        self.policy.observe(plan, step_s(plan), self.now)

    def drain(self) -> None:
        """No more arrivals: everything must end."""
        for _ in range(MAX_STEPS_TO_DRAIN):
            if not self.alive:
                break
            self.step()
        while self.flight:
            self.complete(self.flight.popleft())
        assert not self.alive, f"{len(self.alive)} requests never end"
        assert self.kv.num_free == self.kv.num_blocks
        assert self.policy.preemptor.host.pool.num_free == self.config.num_host_blocks
        assert not any(self.slots.users.values())

    def check_plan(self, plan: StepPlan) -> None:
        planned = [item.seq for item in plan.items]
        assert len(planned) == len(set(planned)), "twice in one step"
        for seq, start, num_tokens, _ in plan.items:
            assert not seq.is_finished
            assert start + num_tokens <= len(seq.block_table) * BLOCK
            assert seq.adapter is None or self.slots.users.get(seq.adapter, 0) > 0
        assert len(self.policy.running) <= self.config.max_num_seqs

    def check(self) -> None:
        """Nothing is lost, held twice, or counted wrongly."""
        leaving = list(self.policy._leaving)
        self.kv.check_integrity([*self.alive, *leaving])
        requests = [*self.policy._requests.values(), *self.policy._leaving.values()]
        host = self.policy.preemptor.host.pool
        held = sum(len(request.host_blocks) for request in requests)
        assert host.num_free + held == self.config.num_host_blocks
        for adapter, users in self.slots.users.items():
            assert users == sum(r.has_slot and r.seq.adapter == adapter for r in requests)
        assert set(self.policy.running) | set(self.policy.waiting) == set(self.alive)
        for tenant in self.policy._tenants.values():
            mine = [r for r in requests if r.flow.tenant is tenant]
            assert tenant.num_blocks == sum(len(r.seq.block_table) for r in mine)
            assert tenant.num_running == sum(r.is_admitted and not r.seq.is_finished for r in mine)
        for lane in self.policy.lanes:
            members = [*lane.decodes, *lane.prefills]
            assert lane.footprint == sum(request.footprint for request in members)
            assert all(flow.counter >= 0 for flow in lane.flows.values())

    def _end(self, seq: Sequence, reason: str) -> None:
        assert seq.request_id not in self.ended, "ends twice"
        self.ended[seq.request_id] = reason
        self.alive.remove(seq)
        for _ in range(2):  # idempotent
            self.policy.finish(seq, self.now, is_cut=reason not in ("stop", "length"))

    def _copy(self, plan: StepPlan) -> None:
        for source, target, direction in plan.copies:
            origin, destination = (
                (self.device, self.host) if direction == "to_host" else (self.host, self.device)
            )
            for offset in range(BLOCK):
                destination[target, offset] = origin.get((source, offset), 0)

    def _compute(self, seq: Sequence, start: int, num_tokens: int) -> None:
        """Write KV of the new positions; all earlier ones must hold what this sequence needs."""
        value = hash(seq.cache_root)
        for position in range(start + num_tokens):
            value = hash((value, seq.token_at(position)))
            place = (seq.block_table[position // BLOCK], position % BLOCK)
            if position >= start:
                self.device[place] = value
            else:
                assert self.device.get(place) == value, f"{seq.request_id} reads foreign KV"
