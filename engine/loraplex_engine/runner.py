"""The seam between the engine's loop and the device: launch a plan, collect its tokens."""

from typing import NamedTuple, Protocol, TypeVar

from loraplex_engine.messages import TokenLogprob
from loraplex_engine.scheduling.policy import StepPlan

Handle = TypeVar("Handle")


class SampledTokens(NamedTuple):
    """What one item of a plan yielded: none for a prompt's inner chunk, one for a decode."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()  # one per token if the request wants them, else empty


class Runner(Protocol[Handle]):
    """Computes steps. The next step may be launched before the last one is collected."""

    def launch(self, plan: StepPlan) -> Handle:
        """Start computing the plan; its sequences' block tables are final until it is collected."""
        ...

    def collect(self, handle: Handle) -> list[SampledTokens]:
        """Wait for a launched step; one entry per item of its plan, in order."""
        ...
