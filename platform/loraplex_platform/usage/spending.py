"""What was spent in a period: roll-ups times prices, which is what the ledger says."""

from sqlalchemy.ext.asyncio import AsyncSession

from loraplex_platform.usage.periods import Period
from loraplex_platform.usage.price_service import PriceService
from loraplex_platform.usage.rating import cost_pico
from loraplex_platform.usage.repository import Level, UsageRepository


class Spending:
    """Usage only: hosting is not something that a request can be refused for."""

    def __init__(self, prices: PriceService) -> None:
        self._prices = prices

    async def pico(
        self, session: AsyncSession, tenant_id: str, period: Period, level: Level, subject: str
    ) -> int:
        segments = list((await self._prices.tariffs(session, tenant_id)).segments(period))
        totals = await UsageRepository(session).totals(
            tenant_id, [part for part, _ in segments], level, subject
        )
        return sum(
            cost_pico(sku, tokens, tariff)
            for (_, tariff), used in zip(segments, totals, strict=True)
            for _, sku, tokens in used
        )
