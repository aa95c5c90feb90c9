"""What the engine finds on this machine, as one line of JSON: `python -m loraplex_engine.checkup`."""

import json
from importlib.metadata import PackageNotFoundError, version

from loraplex_engine.device import Device

PACKAGES = ("torch", "numba", "safetensors", "transformers", "gguf")


def main() -> None:
    device = Device()
    memory = device.memory()
    size = f"{memory.available_bytes / 2**30:.1f} of {memory.total_bytes / 2**30:.1f} GiB available"
    print(json.dumps({"device": f"{device.name}, {size}"} | {p: _version(p) for p in PACKAGES}))  # noqa: T201


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
