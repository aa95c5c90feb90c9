"""Adapters as the engine's loop sees them: versions come and go between steps, never in one."""

from collections.abc import Collection, Mapping
from typing import Protocol

from loraplex_adapters.added_tokens import AddedTokens
from loraplex_adapters.report import ParityCheck
from loraplex_adapters.slot_extras import SlotExtras
from loraplex_adapters.tiers import TierStats
from loraplex_engine.scheduling.policy import AdapterSlots
from loraplex_kernels.lora import Slab


class LoadOutcome(Protocol):
    """How the load of a version ended."""

    @property
    def version(self) -> str: ...

    @property
    def error(self) -> str | None: ...

    @property
    def seconds(self) -> float: ...


class Vocabularies(Protocol):
    """What versions add to the base model's vocabulary."""

    def of(self, version: str) -> AddedTokens | None:
        """Raises AdapterError or OSError for a version that cannot be read."""
        ...


class AdapterTier(AdapterSlots, Protocol):
    """Device slots and what lies below them. Implemented by loraplex_adapters.cache.AdapterCache."""

    @property
    def slabs(self) -> Mapping[str, Slab]:
        """The slab of each fused projection, by its name in the model's layout."""
        ...

    @property
    def extras(self) -> Mapping[int, SlotExtras]:
        """By slot, of those whose version changes more than projections by LoRA."""
        ...

    @property
    def tokens(self) -> Vocabularies: ...

    @property
    def stats(self) -> tuple[TierStats, ...]: ...

    @property
    def resident(self) -> Collection[str]: ...

    @property
    def num_free_slots(self) -> int: ...

    def prefetch(self, version: str, tenant: str) -> None:
        """Somebody of this tenant waits for a version: it may be brought nearer ahead of its turn."""
        ...

    def start_load(self, version: str) -> None:
        """Begin to load an absent version in the background; any other stays as it is.

        Its state is "loading" until poll reports it. Without a slot to be had it goes no further
        than the tiers below, and is absent again.
        """
        ...

    def poll(self) -> "Collection[LoadOutcome]":
        """Loads that ended since the last call; a version that succeeded is resident from now on."""
        ...

    def slot_of(self, version: str) -> int:
        """The slot of a resident version."""
        ...

    def pin(self, version: str, pinned: bool) -> None: ...

    def drop(self, version: str) -> None:
        """Forget a version in all tiers: at once, or when the last sequence that uses it ends."""
        ...

    def check(self, version: str) -> None:
        """Begin a version's parity self-test in the background."""
        ...

    @property
    def checks(self) -> tuple[ParityCheck, ...]:
        """The latest self-tests that have ended."""
        ...

    def close(self) -> None: ...
