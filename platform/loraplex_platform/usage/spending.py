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
        usage, total = UsageRepository(session), 0
        tariffs = await self._prices.tariffs(session, tenant_id)
        for part, tariff in tariffs.segments(period):
            totals = await usage.totals(tenant_id, part, level, subject)
            total += sum(cost_pico(sku, tokens, tariff) for _, sku, tokens in totals)
        return total
