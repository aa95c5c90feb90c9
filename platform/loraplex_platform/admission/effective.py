"""Which limits bind a caller at this moment."""

from loraplex_platform.admission.limits import DIMENSIONS, Limit
from loraplex_platform.admission.models import LimitRule
from loraplex_platform.admission.repository import LimitRepository
from loraplex_platform.db.database import Database
from loraplex_platform.kit.clock import Clock
from loraplex_platform.kit.principal import Principal

CACHE_S = 1.0  # the longest a changed limit is not seen
CACHE_SIZE = 10_000


class EffectiveLimits:
    """The one place that says what binds a principal; read from the database once a second."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._cache: dict[tuple[str, str, str], tuple[float, tuple[Limit, ...]]] = {}

    async def of(self, principal: Principal) -> tuple[Limit, ...]:
        who = (principal.tenant_id, principal.project_id, principal.key_id)
        now_s = self._clock.monotonic()
        read_s, limits = self._cache.get(who, (-CACHE_S, ()))
        if now_s - read_s < CACHE_S:
            return limits
        async with self._database.reading() as session:
            rules = await LimitRepository(session).binding(principal)
        self._cache.pop(who, None)
        while len(self._cache) >= CACHE_SIZE:
            del self._cache[next(iter(self._cache))]  # the oldest
        limits = tuple(limit_of(rule) for rule in rules)
        self._cache[who] = (now_s, limits)
        return limits


def limit_of(rule: LimitRule) -> Limit:
    return Limit(
        dimension=DIMENSIONS[rule.dimension],
        level=rule.level,  # type: ignore[arg-type]  # the service wrote a Level
        subject=rule.subject,
        value=rule.value,
        strict=rule.strict,
    )
