"""Where models lie that tests make on first use and keep for all runs."""

import os
from pathlib import Path


def cache_folder() -> Path:
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "loraplex"
    return Path(os.environ.get("LORAPLEX_CACHE", default))
