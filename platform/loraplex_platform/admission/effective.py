"""Which limits bind a caller at this moment."""

from loraplex_platform.admission.limits import DIMENSIONS, Limit
from loraplex_platform.admission.models import LimitRule
from loraplex_platform.admission.repository import LimitRepository
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.principal import Principal
from loraplex_platform.kit.recent import Recent

CACHE_S = 0.5  # how long a changed limit may go unseen: commands promise a second


class EffectiveLimits:
    """The one place that says what binds a principal; reads at most once in CACHE_S for each."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._recent: Recent[tuple[str, str, str], tuple[Limit, ...]] = Recent(clock, CACHE_S)

    async def of(self, principal: Principal) -> tuple[Limit, ...]:
        who = (principal.tenant_id, principal.project_id, principal.key_id)
        limits = self._recent.get(who)
        if limits is None:
            async with self._database.reading() as session:
                rules = await LimitRepository(session).binding(principal)
            limits = tuple(limit_of(rule) for rule in rules)
            self._recent.put(who, limits)
        return limits


def limit_of(rule: LimitRule) -> Limit:
    return Limit(
        dimension=DIMENSIONS[rule.dimension],
        level=rule.level,  # type: ignore[arg-type]  # the service wrote a Level
        subject=rule.subject,
        value=rule.value,
        strict=rule.strict,
    )
