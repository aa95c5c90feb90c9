"""A request that was admitted: its answer, whole or in chunks."""

from collections.abc import AsyncIterator, Mapping

from loraplex_platform.openai.answers import Answer, Choice, Json
from loraplex_platform.openai.generation import Generation
from loraplex_platform.openai.tally import Tally


class Reply:
    """Read it once: as a whole, or chunk by chunk."""

    def __init__(
        self,
        generation: Generation,
        answer: Answer,
        tally: Tally,
        headers: Mapping[str, str],
        *,
        includes_usage: bool,
    ) -> None:
        self._generation = generation
        self._answer = answer
        self._tally = tally
        self._includes_usage = includes_usage
        self.headers = headers

    async def whole(self) -> Json:
        """The complete answer, once it is settled; an engine lost midway is tried again."""
        choices = [Choice() for _ in self._tally.sequences]
        for piece in await self._generation.whole():
            choices[piece.choice].add(piece.event)
        return self._answer.whole(choices, self._tally)

    async def chunks(self) -> AsyncIterator[Json]:
        """The answer's chunks; the iterator ends when the request is settled."""
        opened: set[int] = set()
        async for choice, event in self._generation.pieces():
            if choice not in opened:
                opened.add(choice)
                for chunk in self._answer.opening(choice):
                    yield chunk
            shown = self._answer.chunk(choice, event)
            if shown is not None:
                yield shown
        if self._includes_usage:
            yield self._answer.usage_chunk(self._tally)

    def abandon(self) -> None:
        """Nobody waits for the rest: the engine stops, what it did is settled. Idempotent."""
        self._generation.abandon()
