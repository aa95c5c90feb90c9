"""Who starts before a waiting request, and how long that takes: what a client is told, or spared."""

from collections.abc import Iterator

from loraplex_engine.scheduling.admission import Admission
from loraplex_engine.scheduling.config import SchedulerConfig
from loraplex_engine.scheduling.flows import Flow, Lane, Request
from loraplex_engine.scheduling.policy import KvCache
from loraplex_engine.scheduling.step_model import StepModel


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

    def wait_s(self, ahead: list[Request]) -> float:
        """Seconds until the engine can start one more request after these."""
        running = [r for lane in self._lanes for r in (*lane.prefills, *lane.decodes)]
        everybody = [*ahead, *running]
        held = sum(request.seq.num_prompt_tokens + self._estimate(request) for request in everybody)
        if len(everybody) < self._config.max_num_seqs and held < self._num_tokens:
            return sum(map(self._prefill_s, everybody))
        seats = min(self._config.max_num_seqs, len(everybody) * self._num_tokens // max(1, held))
        seats = max(1, seats)
        until_seat_s = sum(self._work_s(request, seats) for request in running) / seats
        return until_seat_s + sum(self._work_s(request, seats) for request in ahead)

    def _overtaking(self, rival: Flow, reach: float) -> Iterator[Request]:
        """Requests of another tenant whose turn comes before a counter gets as far as `reach`."""
        counter = rival.counter
        for request in rival.waiting:
            if counter >= reach:
                return
            yield request
            counter += self.cost(request) / rival.tenant.share.weight

    def _work_s(self, request: Request, seats: int) -> float:
        """Time that a request takes from all others, when so many share each step's fixed part."""
        model, left = self._model, self._left(request)
        context = request.seq.num_tokens + left / 2
        token_s = model.base_s / seats + model.per_token_s + model.per_seq_s
        return self._prefill_s(request) + left * (token_s + model.per_context_s * context)

    def _prefill_s(self, request: Request) -> float:
        seq = request.seq
        return self._model.prefill_s(max(0, seq.num_prompt_tokens - seq.num_computed))

    def _left(self, request: Request) -> int:
        return max(1, self._estimate(request) - len(request.seq.output_ids))

    def _estimate(self, request: Request) -> int:
        return request.estimate or self._admission.forecast(request)
