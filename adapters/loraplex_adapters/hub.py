"""An adapter's two files from the Hugging Face hub; nothing else of a repository is fetched."""

import re
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from loraplex_adapters.errors import MissingFile
from loraplex_adapters.folder import CONFIG_NAME, WEIGHTS_NAME

HUB_ID = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")


def is_hub_id(text: str) -> bool:
    """`owner/name`, or `owner/name@revision`."""
    return HUB_ID.fullmatch(text) is not None


def download_adapter(hub_id: str, folder: Path) -> None:
    """Put the files into a folder, real ones and no links; raises MissingFile with the hub's reason."""
    match = HUB_ID.fullmatch(hub_id)
    assert match is not None
    try:
        snapshot_download(
            match["repository"],
            revision=match["revision"],
            allow_patterns=[CONFIG_NAME, WEIGHTS_NAME],
            local_dir=folder,
        )
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise MissingFile(f"{hub_id} cannot be fetched: {error}", file=hub_id) from error
