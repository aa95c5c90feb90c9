"""A ticket: the right to be served, given back exactly once."""

from collections.abc import Mapping

from loraplex_platform.admission.limiter import Actual, Demand, Limiter, Reservation


class Ticket:
    """What admission reserved for one request."""

    def __init__(self, limiter: Limiter, reservation: Reservation) -> None:
        self._limiter = limiter
        self._reservation = reservation
        self._is_open = True

    @property
    def demand(self) -> Demand:
        return self._reservation.demand

    @property
    def headers(self) -> Mapping[str, str]:
        return self._reservation.headers

    async def started(self) -> None:
        """The first token is there: the request no longer waits in a queue."""
        await self._limiter.started(self._reservation)

    async def settle(self, actual: Actual) -> None:
        """The request ended and took this."""
        await self._close(actual)

    async def release(self) -> None:
        """The request was not served; does nothing once settled."""
        if self._is_open:
            await self._close(None)

    async def _close(self, actual: Actual | None) -> None:
        assert self._is_open, "a ticket is settled or released once"
        self._is_open = False
        await self._limiter.settle(self._reservation, actual)


async def admit(limiter: Limiter, demand: Demand) -> Ticket:
    """Raises RateLimited when a limit is reached."""
    return Ticket(limiter, await limiter.reserve(demand))
