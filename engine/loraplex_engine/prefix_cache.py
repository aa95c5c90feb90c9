"""Paged KV with reuse of prefixes: full blocks are hash-chained under a root key per cache scope.

The root key separates base model, KV format, tenant scope and adapter version, so nothing is ever
shared across tenants or adapter versions. A full block is known by the hash of all tokens up to its
end; blocks nobody holds stay cached. Evicted are those of a tenant that has more than its share, then
those used longest ago, and registered prefixes last.
"""

import hashlib
from array import array
from collections import Counter, OrderedDict
from itertools import islice, pairwise, takewhile

from loraplex_engine.blocks import BlockPool
from loraplex_engine.sequence import Sequence


def root_key(
    model_hash: str, kv_dtype: str, block_size: int, cache_scope: str, adapter: str | None
) -> bytes:
    """The key under which blocks are chained; fields are tagged, so none can run into the next."""
    digest = hashlib.blake2b(digest_size=16, person=b"loraplex-kv-root")
    fields = {
        "model": model_hash,
        "dtype": kv_dtype,
        "block": str(block_size),
        "scope": cache_scope,
        "adapter": adapter or "",
    }
    for tag, value in fields.items():
        digest.update(f"{tag}:{len(value)}:{value};".encode())
    return digest.digest()


class PagedKv:
    """Block tables of sequences over one BlockPool, with a prefix cache. Pure bookkeeping."""

    def __init__(self, num_blocks: int, block_size: int, *, caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.caching = caching
        self.pool = BlockPool(num_blocks)
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self._owner: dict[int, str] = {}  # the tenant whose sequence filled a cached block
        self._warm_keys: Counter[bytes] = Counter()  # of registered prefixes
        # Cached, held by nobody, the one used longest ago first: all, each tenant's, and warm ones.
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._idle_of: dict[str, OrderedDict[int, None]] = {}
        self._warm: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        return self.pool.num_free + len(self._idle) + len(self._warm)

    @property
    def num_cached(self) -> int:
        """Blocks in the prefix cache, held or idle."""
        return len(self._hash_of)

    def match_prefix(self, seq: Sequence) -> int:
        return len(self._matching_blocks(seq)) * self.block_size

    def next_block_key(self, seq: Sequence) -> bytes | None:
        if not self.caching:
            return None
        keys = self._hashes(seq, (seq.num_known - 1) // self.block_size)
        return next((key for key in keys if key not in self._block_of), None)

    def blocks_needed(self, seq: Sequence, num_tokens: int) -> int:
        return max(0, -(-num_tokens // self.block_size) - len(seq.block_table))

    def start(self, seq: Sequence) -> int:
        assert not seq.block_table
        blocks = self._matching_blocks(seq)
        for block in blocks:
            self._take_up(block)
            self.pool.hold(block)
        seq.block_table.extend(blocks)
        seq.num_computed = seq.num_scheduled = len(blocks) * self.block_size
        return seq.num_computed

    def extend(self, seq: Sequence, num_tokens: int) -> bool:
        needed = self.blocks_needed(seq, num_tokens)
        if needed > self.num_free:
            return False
        self._evict(needed - self.pool.num_free)
        for _ in range(needed):
            seq.block_table.append(self.pool.allocate())
        return True

    def commit(self, seq: Sequence) -> None:
        if not self.caching:
            return
        num_full = min(seq.num_computed, seq.num_known) // self.block_size
        if num_full == 0 or seq.block_table[num_full - 1] in self._hash_of:
            return  # blocks are published in order: nothing is new
        hashes = self._hashes(seq, num_full)
        for block, key in zip(seq.block_table[:num_full], hashes, strict=True):
            if block not in self._hash_of and key not in self._block_of:
                self._block_of[key] = block
                self._hash_of[block] = key
                self._owner[block] = seq.tenant

    def free(self, seq: Sequence) -> None:
        # The deepest block goes first, so that eviction shortens chains from their ends.
        for block in reversed(seq.block_table):
            if self.pool.drop(block):
                if block in self._hash_of:
                    self._lay_down(block)
                else:
                    self.pool.free(block)
        seq.block_table.clear()
        seq.num_computed = seq.num_scheduled = 0

    def check_integrity(self, sequences: list[Sequence]) -> None:
        """Assert that blocks are free, idle, or held exactly as often as tables name them."""
        held = [0] * self.num_blocks
        for seq in sequences:
            for block in seq.block_table:
                held[block] += 1
        assert all(self.pool.ref_count(b) == n for b, n in enumerate(held))
        num_held = sum(n > 0 for n in held)
        idle = [*self._idle, *self._warm]
        assert self.pool.num_free + len(idle) + num_held == self.num_blocks
        assert all(held[b] == 0 and b in self._hash_of for b in idle)
        assert all(self._warm_keys[self._hash_of[b]] for b in self._warm)
        assert not any(self._warm_keys[self._hash_of[b]] for b in self._idle)
        owned = {b: tenant for tenant, own in self._idle_of.items() for b in own}
        assert owned == {b: self._owner[b] for b in self._idle}
        assert self._owner.keys() == self._hash_of.keys()
        assert {key: b for b, key in self._hash_of.items()} == self._block_of

    def block_keys(self, seq: Sequence) -> list[bytes]:
        return self._hashes(seq, len(seq.prompt_ids) // self.block_size) if self.caching else []

    def num_cached_of(self, keys: list[bytes]) -> int:
        return sum(1 for _ in takewhile(self._block_of.__contains__, keys))

    def keep_warm(self, keys: list[bytes]) -> None:
        self._warm_keys.update(keys)
        for block in self._cached_among(keys):
            if block in self._idle:
                self._take_up(block)
                self._lay_down(block)

    def let_cool(self, keys: list[bytes]) -> None:
        self._warm_keys.subtract(keys)
        for key in keys:
            if not self._warm_keys[key]:
                del self._warm_keys[key]
        for block in self._cached_among(keys):
            if block in self._warm:
                self._take_up(block)
                self._lay_down(block)

    def _cached_among(self, keys: list[bytes]) -> list[int]:
        """The deepest first, so that eviction shortens chains from their ends."""
        return [self._block_of[key] for key in reversed(keys) if key in self._block_of]

    def _matching_blocks(self, seq: Sequence) -> list[int]:
        if not self.caching:
            return []
        blocks: list[int] = []
        # The last known token is always computed: its logits are wanted.
        for key in self._hashes(seq, (seq.num_known - 1) // self.block_size):
            block = self._block_of.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def _hashes(self, seq: Sequence, num_full: int) -> list[bytes]:
        size, hashes = self.block_size, seq.block_hashes
        for start, stop in pairwise(range(len(hashes) * size, num_full * size + 1, size)):
            parent = hashes[-1] if hashes else seq.cache_root
            tokens = array("q", seq.known_ids(start, stop)).tobytes()
            hashes.append(hashlib.blake2b(parent + tokens, digest_size=16).digest())
        return hashes[:num_full]

    def _lay_down(self, block: int) -> None:
        """A cached block has lost its last holder."""
        if self._warm_keys[self._hash_of[block]]:
            self._warm[block] = None
        else:
            self._idle[block] = None
            self._idle_of.setdefault(self._owner[block], OrderedDict())[block] = None

    def _take_up(self, block: int) -> None:
        """An idle block gets a holder, or is evicted. Idempotent."""
        self._warm.pop(block, None)
        if block in self._idle:
            del self._idle[block]
            own = self._idle_of[self._owner[block]]
            del own[block]
            if not own:
                del self._idle_of[self._owner[block]]

    def _evict(self, count: int) -> None:
        """Make idle blocks free: of the tenant with more than its share of the cache first.

        A tenant's share is the same part of all blocks for every tenant that has idle ones. Within
        the shares the block used longest ago goes first; registered prefixes go last.
        """
        while count > 0 and self._idle:
            share = self.num_blocks // len(self._idle_of)
            greedy = max(self._idle_of.values(), key=len)
            excess = len(greedy) - share
            victims, number = (greedy, min(count, excess)) if excess > 0 else (self._idle, count)
            for block in list(islice(victims, number)):
                self._forget(block)
                count -= 1
        for block in list(islice(self._warm, max(0, count))):
            self._forget(block)

    def _forget(self, block: int) -> None:
        self._take_up(block)
        del self._block_of[self._hash_of.pop(block)]
        del self._owner[block]
        self.pool.free(block)
