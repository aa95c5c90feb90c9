"""Taking blocks, seats and slots from those who can wait: whom, and whether their KV is kept."""

from collections.abc import Iterable

from loraplex_engine.blocks import BlockPool
from loraplex_engine.scheduling.config import SchedulerConfig
from loraplex_engine.scheduling.flows import Lane, Request, is_busy
from loraplex_engine.scheduling.policy import (
    BlockCopy,
    KvCache,
    Preemption,
    PreemptionMode,
    StepPlan,
)
from loraplex_engine.scheduling.residency import Residency
from loraplex_engine.scheduling.step_model import StepModel


class HostTier:
    """Copies of blocks in host memory. Leading blocks are copied while the request still runs."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size

    def checkpoint(self, request: Request, limit: int) -> list[BlockCopy]:
        """Copy up to `limit` more full blocks of a running request."""
        num_full = request.seq.num_computed // self.block_size
        return self._copy_out(request, min(num_full, request.num_checkpointed + limit))

    def park(self, request: Request) -> list[BlockCopy]:
        """Copy what is not copied yet. The caller has asked `missing` and then frees the blocks."""
        copies = self._copy_out(request, self._num_blocks(request))
        request.parked_tokens = request.seq.num_computed
        return copies

    def missing(self, request: Request) -> int | None:
        """Blocks that parking would copy; None when the host has no room for them."""
        wanted = self._num_blocks(request)
        if wanted - len(request.host_blocks) > self.pool.num_free:
            return None
        return wanted - request.num_checkpointed

    def restore(self, request: Request, num_cached_tokens: int) -> list[BlockCopy]:
        """Bring back what the device no longer has. Full blocks stay as checkpoints."""
        num_blocks = -(-request.parked_tokens // self.block_size)
        first = num_cached_tokens // self.block_size
        table, host = request.seq.block_table, request.host_blocks
        copies = [BlockCopy(host[i], table[i], "to_device") for i in range(first, num_blocks)]
        request.num_checkpointed = request.parked_tokens // self.block_size
        request.parked_tokens = 0
        return copies

    def drop(self, request: Request) -> None:
        """Forget the copies. Idempotent."""
        for block in request.host_blocks:
            self.pool.drop(block)
            self.pool.free(block)
        request.host_blocks.clear()
        request.num_checkpointed = request.parked_tokens = 0

    def _num_blocks(self, request: Request) -> int:
        return -(-request.seq.num_computed // self.block_size)

    def _copy_out(self, request: Request, stop: int) -> list[BlockCopy]:
        table, host = request.seq.block_table, request.host_blocks
        copies = []
        for i in range(request.num_checkpointed, stop):
            if i == len(host):
                if self.pool.num_free == 0:
                    break
                host.append(self.pool.allocate())
            copies.append(BlockCopy(table[i], host[i], "to_host"))
        request.num_checkpointed += len(copies)
        return copies


class Preemptor:
    """Chooses victims and sends them back to the front of their flows."""

    def __init__(
        self,
        kv: KvCache,
        residency: Residency,
        model: StepModel,
        lanes: list[Lane],
        config: SchedulerConfig,
    ) -> None:
        self.kv = kv
        self.residency = residency
        self.model = model
        self.lanes = lanes
        self.config = config
        self.host = HostTier(config.num_host_blocks, kv.block_size)
        self.aborted: list[Request] = []  # in this step; who plans it forgets them

    def make_room(self, request: Request, num_tokens: int, plan: StepPlan, step: int) -> bool:
        """Blocks for `num_tokens` tokens in all, preempting as few as needed, or nobody at all."""
        seq = request.seq
        short = self.kv.blocks_needed(seq, num_tokens) - self.kv.num_free
        if short > 0 and not self._reclaim(request, short, plan, step):
            return False
        if not self.kv.extend(seq, num_tokens):  # a victim's blocks were shared
            return False
        self._account(request)
        return True

    def free_seat(self, plan: StepPlan, step: int) -> bool:
        """Take the place of the cheapest batch request."""
        victims = self._ranked(self._idle(self.lanes[-1]), step)
        if victims:
            self.preempt(victims[0], plan)
        return bool(victims)

    def free_slot(self, plan: StepPlan) -> bool:
        """Take an adapter slot that batch work alone holds."""
        users = self.residency.held_by_batch()
        if not users or any(is_busy(user) for user in users):
            return False
        for user in users:
            if user.is_admitted:
                self.preempt(user, plan)
            else:
                self.residency.release(user)
        return True

    def preempt(self, request: Request, plan: StepPlan) -> None:
        """Take everything from a running request; it waits at the front of its flow, or ends."""
        seq, flow = request.seq, request.flow
        mode = self._mode(request)
        plan.preemptions.append(Preemption(seq, mode))
        seq.num_preemptions += 1
        flow.lane.leave(request)
        if mode == "abort":
            self.release(request)
            self.aborted.append(request)
            return
        if mode == "offload":
            plan.copies += self.host.park(request)
        else:
            request.replay += seq.num_computed
            seq.num_recomputed += seq.num_computed
            self.host.drop(request)
        seq.phase = "parked" if mode == "offload" else "waiting"
        self.release(request)
        request.urgency = (float("-inf"), request.number)
        flow.push(request)

    def release(self, request: Request) -> None:
        """Give back blocks and slot of a request that no longer runs."""
        request.is_admitted = False
        self.kv.free(request.seq)
        self._account(request)
        self.residency.release(request)

    def _account(self, request: Request) -> None:
        """Bring the books in line with the block table."""
        capacity = len(request.seq.block_table) * self.kv.block_size
        request.flow.tenant.num_blocks += (capacity - request.capacity) // self.kv.block_size
        request.capacity = capacity

    def _reclaim(self, request: Request, short: int, plan: StepPlan, step: int) -> bool:
        chosen = []
        for victim in self._ranked(self._candidates(request, step), step):
            chosen.append(victim)
            short -= len(victim.seq.block_table)
            if short <= 0:
                break
        if short > 0:
            return False
        for victim in chosen:
            self.preempt(victim, plan)
        return True

    def _candidates(self, request: Request, step: int) -> list[Request]:
        """Batch work for live work; besides, the lower and the younger for whoever decodes already."""
        lane = request.flow.lane
        batch = self.lanes[-1]
        found = self._idle(batch) if lane is not batch else []
        if request.is_admitted:
            # The oldest is spared by nobody and spares nobody: so there is always one that gets on.
            is_oldest = request.number == min(r.number for r in (*lane.decodes, *lane.prefills))
            for other in self.lanes[lane.index :]:
                if other is not batch or lane is batch:
                    idle = self._idle(other)
                    found += [v for v in idle if is_oldest or not self._is_protected(v, lane)]
        return [v for v in found if v.flow.lane is not lane or v.number > request.number]

    def _is_protected(self, victim: Request, lane: Lane) -> bool:
        """Preempted so often that its own tier leaves it alone."""
        is_worn = victim.seq.num_preemptions >= self.config.max_preemptions
        return is_worn and victim.flow.lane is lane

    @staticmethod
    def _idle(lane: Lane) -> list[Request]:
        return [r for group in (lane.decodes, lane.prefills) for r in group if not is_busy(r)]

    def _ranked(self, victims: Iterable[Request], step: int) -> list[Request]:
        return sorted(victims, key=lambda victim: self._rank(victim, step))

    def _rank(self, victim: Request, step: int) -> tuple[int, bool, float, float, int]:
        lane = victim.flow.lane
        is_fresh = step - victim.admitted_step < self.config.min_run_steps
        is_spared = victim.seq.num_preemptions >= self.config.max_preemptions or (
            is_fresh and victim.seq.num_preemptions > 0
        )
        waste = min(self._recompute_s(victim), self._offload_s(victim))
        overserved = victim.flow.counter - lane.virtual
        per_block = waste / max(1, len(victim.seq.block_table))
        return (-lane.index, is_spared, per_block, -overserved, -victim.number)

    def _mode(self, request: Request) -> PreemptionMode:
        if request.flow.lane.target.may_abort:
            return "abort"
        return "offload" if self._offload_s(request) < self._recompute_s(request) else "recompute"

    def _recompute_s(self, request: Request) -> float:
        return self.model.prefill_s(request.seq.num_computed)

    def _offload_s(self, request: Request) -> float:
        missing = self.host.missing(request)
        if missing is None:
            return float("inf")
        num_blocks = len(request.seq.block_table)
        return self.config.copy_s_per_block * (
            missing + num_blocks * (1 - self.config.copy_overlap)
        )
