"""The prefix cache of FakeEngine: unbounded, in blocks, separated as the real one is."""

from dataclasses import replace

from loraplex_engine.messages import Generate, PrefixStats, RegisterPrefix

BLOCK = 16  # tokens


class FakePrefixes:
    """What was computed, and what is registered."""

    def __init__(self) -> None:
        self._computed: set[tuple[str, str | None, tuple[int, ...]]] = set()
        self._registered: dict[str, tuple[RegisterPrefix, PrefixStats]] = {}

    @property
    def stats(self) -> tuple[PrefixStats, ...]:
        return tuple(stats for _, stats in self._registered.values())

    def clear(self) -> None:
        self._computed.clear()
        self._registered.clear()

    def look_up(self, request: Generate) -> int:
        """Cached tokens the request starts with; counts it for the prefixes it begins with."""
        ids, cached = request.prompt_ids, 0
        for end in range((len(ids) - 1) // BLOCK * BLOCK, 0, -BLOCK):
            if (request.cache_scope, request.adapter, ids[:end]) in self._computed:
                cached = end
                break
        for prefix_id, (prefix, seen) in self._registered.items():
            begins = ids[: seen.num_tokens] == prefix.token_ids[: seen.num_tokens]
            is_own = (request.cache_scope, request.adapter) == (prefix.cache_scope, prefix.adapter)
            if begins and is_own:
                counted = replace(
                    seen,
                    requests=seen.requests + 1,
                    hits=seen.hits + (cached >= seen.num_tokens),
                    saved_tokens=seen.saved_tokens + min(cached, seen.num_tokens),
                )
                self._registered[prefix_id] = (prefix, counted)
        return cached

    def remember(self, request: Generate) -> None:
        self._compute(request.cache_scope, request.adapter, request.prompt_ids)

    def register(self, command: RegisterPrefix) -> None:
        self._compute(command.cache_scope, command.adapter, command.token_ids)
        warm = len(command.token_ids) // BLOCK * BLOCK
        stats = PrefixStats(command.prefix_id, command.tenant, warm, warm, 0, 0, 0)
        self._registered[command.prefix_id] = (command, stats)

    def drop(self, prefix_id: str) -> None:
        self._registered.pop(prefix_id, None)

    def _compute(self, scope: str, adapter: str | None, ids: tuple[int, ...]) -> None:
        for end in range(BLOCK, len(ids) + 1, BLOCK):
            self._computed.add((scope, adapter, ids[:end]))
