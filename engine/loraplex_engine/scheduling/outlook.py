"""Who starts before a waiting request, and how long that takes: what a client is told, or spared."""

from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace

from loraplex_engine.scheduling.admission import Admission
from loraplex_engine.scheduling.config import SchedulerConfig
from loraplex_engine.scheduling.flows import Flow, Lane, Request
from loraplex_engine.scheduling.policy import KvCache
from loraplex_engine.scheduling.step_model import StepLoad, StepModel


class Outlook:
    """Reads the lanes; changes nothing."""

    def __init__(
        self,
        kv: KvCache,
        lanes: list[Lane],
        model: StepModel,
        admission: Admission,
        config: SchedulerConfig,
    ) -> None:
        self._num_tokens = kv.num_blocks * kv.block_size
        self._lanes = lanes
        self._model = model
        self._admission = admission
        self._config = config

    def cost(self, request: Request) -> float:
        """The service it is still expected to get."""
        todo = max(0, request.seq.num_prompt_tokens - request.seq.num_computed)
        return self._config.prefill_cost * todo + self._config.decode_cost * self._left(request)

    def ahead_of(self, request: Request) -> list[Request]:
        """Those who start before it, as things stand."""
        flow = request.flow
        own = flow.waiting[: flow.waiting.index(request)]
        reach = flow.counter + sum(map(self.cost, own)) / flow.tenant.share.weight
        ahead = list(own)
        for lane in self._lanes[: flow.lane.index + 1]:
            for rival in lane.backlog:
                if lane is not flow.lane:
                    ahead += rival.waiting
                elif rival is not flow:
                    ahead += self._overtaking(rival, reach)
        return ahead

    def wait_s(self, request: Request, ahead: list[Request]) -> float:
        """Seconds until a request can start, after these.

        Each of them takes the first seat that is left, and leaves it a step for each token later. Batch
        work keeps no live request from a seat; if steps are too long for it to fill, it waits for the end
        of all.
        """
        lanes = [lane for lane in self._lanes if lane.is_live or not request.is_live]
        running = [r for lane in lanes for r in (*lane.prefills, *lane.decodes)]
        everybody = [*running, *ahead]
        left = [self._left(each) for each in everybody]
        held = sum(left) + sum(each.seq.num_tokens for each in everybody)
        seats = self._config.max_num_seqs
        if held >= self._num_tokens:
            seats = max(1, min(seats, len(everybody) * self._num_tokens // held))
        load = StepLoad()
        if everybody:
            count = min(seats, len(everybody))
            load.add_decodes(count, (held - sum(left) // 2) * count // len(everybody))
        token_s = self._model.predict(load)
        leaves_s = [tokens * token_s for tokens in left[: len(running)]]
        leaves_s += [0.0] * (seats - len(running))
        heapify(leaves_s)
        while len(leaves_s) > seats:
            heappop(leaves_s)
        for tokens in left[len(running) :]:
            heapreplace(leaves_s, leaves_s[0] + tokens * token_s)
        has_room = request.is_live or token_s <= self._config.fill_step_s
        start_s = leaves_s[0] if has_room else max(leaves_s)
        return start_s + sum(map(self._prefill_s, everybody))

    def _overtaking(self, rival: Flow, reach: float) -> Iterator[Request]:
        """Requests of another tenant whose turn comes before a counter gets as far as `reach`."""
        counter = rival.counter
        for request in rival.waiting:
            if counter >= reach:
                return
            yield request
            counter += self.cost(request) / rival.tenant.share.weight

    def _prefill_s(self, request: Request) -> float:
        seq = request.seq
        return self._model.prefill_s(max(0, seq.num_prompt_tokens - seq.num_computed))

    def _left(self, request: Request) -> int:
        estimate = request.estimate or self._admission.forecast(request)
        return max(1, estimate - len(request.seq.output_ids))
