"""An adapter's files from the Hugging Face hub: `python -m loraplex_adapters.hub ID FOLDER`.

Nothing else of a repository is fetched. A process of its own, since what the hub needs is slow to import.
"""

import re
import sys
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from loraplex_adapters.errors import MissingFile
from loraplex_adapters.folder import CONFIG_NAME, TOKENIZER_LIMITS, WEIGHTS_NAME

HUB_ID = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")


def download_adapter(hub_id: str, folder: Path) -> None:
    """Put the files into a folder, real ones and no links; raises MissingFile with the hub's reason."""
    match = HUB_ID.fullmatch(hub_id)
    if match is None:
        raise MissingFile(f"{hub_id} is neither a folder nor owner/name of the hub", file=hub_id)
    try:
        snapshot_download(
            match["repository"],
            revision=match["revision"],
            allow_patterns=[CONFIG_NAME, WEIGHTS_NAME, *TOKENIZER_LIMITS],
            local_dir=folder,
        )
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise MissingFile(f"{hub_id} cannot be fetched: {error}", file=hub_id) from error


def main() -> int:
    hub_id, folder = sys.argv[1:]
    try:
        download_adapter(hub_id, Path(folder))
    except MissingFile as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
