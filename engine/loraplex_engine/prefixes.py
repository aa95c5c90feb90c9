"""Prefixes that tenants registered: computed ahead, kept warm, and what they saved."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from loraplex_engine.adapter_tier import Vocabularies
from loraplex_engine.intake import Served, live_request, refusal
from loraplex_engine.live_request import LiveRequest
from loraplex_engine.messages import Generate, PrefixStats, RegisterPrefix, SamplingParams
from loraplex_engine.scheduling.policy import PrefixCache
from loraplex_engine.sequence import Sequence


@dataclass(slots=True)
class _Registered:
    command: RegisterPrefix
    root: bytes
    keys: list[bytes]  # of its full blocks
    stats: PrefixStats


class Prefixes:
    """By id; a prefix shorter than a block has nothing to keep, and is only listed."""

    def __init__(self, kv: PrefixCache, served: Served, tokens: Vocabularies) -> None:
        self._kv = kv
        self._served = served
        self._tokens = tokens
        self._known: dict[str, _Registered] = {}
        self._by_root: defaultdict[bytes, list[_Registered]] = defaultdict(list)

    def register(self, command: RegisterPrefix, now: float) -> LiveRequest | None:
        """Keep it warm from now on; returns the request that computes what is missing of it."""
        known = self._known.get(command.prefix_id)
        if known is not None and known.command == command:
            return None
        self.drop(command.prefix_id)
        request = self._warming(command)
        live = live_request(request, self._served, now, self._tokens)
        live.is_internal = True
        is_possible = refusal(request, self._served, live.vocabulary.size) is None
        keys = self._kv.block_keys(live.seq) if is_possible else []
        size = self._kv.block_size
        stats = PrefixStats(command.prefix_id, command.tenant, len(keys) * size, 0, 0, 0, 0)
        registered = _Registered(command, live.seq.cache_root, keys, stats)
        self._known[command.prefix_id] = registered
        self._by_root[registered.root].append(registered)
        self._kv.keep_warm(keys)
        return live if self._kv.num_cached_of(keys) < len(keys) else None

    def drop(self, prefix_id: str) -> None:
        """An unknown id is ignored."""
        registered = self._known.pop(prefix_id, None)
        if registered is not None:
            self._by_root[registered.root].remove(registered)
            self._kv.let_cool(registered.keys)

    def note(self, seq: Sequence) -> None:
        """A sequence has started: count it for the prefixes it begins with."""
        for registered in self._by_root.get(seq.cache_root, ()):
            count = len(registered.keys)
            if count and seq.block_hashes[count - 1 : count] == registered.keys[-1:]:
                whole, seen = count * self._kv.block_size, registered.stats
                registered.stats = replace(
                    seen,
                    requests=seen.requests + 1,
                    hits=seen.hits + (seq.num_cached >= whole),
                    saved_tokens=seen.saved_tokens + min(seq.num_cached, whole),
                )

    def stats(self) -> Iterator[PrefixStats]:
        for registered in self._known.values():
            num_warm = self._kv.num_cached_of(registered.keys)
            yield replace(registered.stats, warm_tokens=num_warm * self._kv.block_size)

    def _warming(self, command: RegisterPrefix) -> Generate:
        """Its blocks, and one token that nobody sees; batch work of the tenant's."""
        num_tokens = len(command.token_ids) // self._kv.block_size * self._kv.block_size
        return Generate(
            request_id=f"prefix:{command.prefix_id}",
            prompt_ids=command.token_ids[:num_tokens],
            sampling=SamplingParams(max_tokens=1, temperature=0.0),
            tenant=command.tenant,
            project="",
            cache_scope=command.cache_scope,
            tier="batch",
            adapter=command.adapter,
        )
