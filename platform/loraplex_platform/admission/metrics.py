"""What the limiter tells Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from loraplex_engine.messages import Tier

LATENCY_S = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25)
ERROR_RATIO = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.5, 2.0, 4.0, 8.0, 16.0)


class LimiterMetrics:
    """Rejections, what is in flight, the time inside admission, and how good the estimates are."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._rejections = Counter(
            "loraplex_rejections",
            "Requests that a limit turned away.",
            ("reason", "tier"),
            registry=registry,
        )
        self._latency = Histogram(
            "loraplex_limiter_seconds",
            "Time inside admission.",
            registry=registry,
            buckets=LATENCY_S,
        )
        self._error = Histogram(
            "loraplex_reservation_ratio",
            "Tokens reserved for each token used.",
            registry=registry,
            buckets=ERROR_RATIO,
        )
        self._inflight = Gauge(
            "loraplex_inflight_requests",
            "Requests that were admitted and are not settled.",
            ("tier",),
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._degraded = Gauge(
            "loraplex_limiter_degraded",
            "Whether limits are local because the shared store is away.",
            registry=registry,
            multiprocess_mode="mostrecent",  # the store is one: who spoke to it last knows
        )

    def opened(self, tier: Tier) -> None:
        self._inflight.labels(tier).inc()

    def closed(self, tier: Tier) -> None:
        self._inflight.labels(tier).dec()

    def rejected(self, reason: str, tier: Tier) -> None:
        self._rejections.labels(reason, tier).inc()

    def degraded(self, is_degraded: bool) -> None:
        self._degraded.set(is_degraded)

    def took(self, seconds: float) -> None:
        self._latency.observe(seconds)

    def estimated(self, reserved: int, used: int) -> None:
        if used:
            self._error.observe(reserved / used)
