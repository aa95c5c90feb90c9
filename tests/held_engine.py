"""An engine whose answers stand still until a test lets them go."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from loraplex_engine.fake import FakeEngine
from loraplex_engine.messages import Finished, Generate, TokenEvent


class HeldEngine(FakeEngine):
    """A request's first token waits for `first`, the next one for `rest`, as they are when it comes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest = asyncio.Event(), asyncio.Event()

    async def generate(self, request: Generate) -> AsyncGenerator[TokenEvent | Finished, None]:
        gates = [self.first, self.rest]
        async with aclosing(super().generate(request)) as events:
            async for event in events:
                if gates:
                    await gates.pop(0).wait()
                yield event

    def let_go(self) -> None:
        self.first.set()
        self.rest.set()
