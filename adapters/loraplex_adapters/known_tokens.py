"""What versions add to the vocabulary, remembered: a version's content never changes."""

from collections import OrderedDict

from loraplex_adapters.added_tokens import AddedTokens
from loraplex_adapters.store import AdapterStore

KEPT = 1024  # versions; mostly there is nothing to keep of one


class KnownTokens:
    """Reads a version's file once."""

    def __init__(self, store: AdapterStore) -> None:
        self._store = store
        self._known: OrderedDict[str, AddedTokens | None] = OrderedDict()

    def of(self, version: str) -> AddedTokens | None:
        """Raises AdapterError or OSError for a version that cannot be read."""
        if version in self._known:
            self._known.move_to_end(version)
            return self._known[version]
        found = self._known[version] = self._store.added_tokens(version)
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
        return found

    def forget(self, version: str) -> None:
        """Its file was not what the version says."""
        self._known.pop(version, None)
