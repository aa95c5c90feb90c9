"""A PEFT folder is judged against the base model's folder, and stored."""

from pathlib import Path

from tokenizers import Tokenizer

from loraplex_adapters.extended_tokenizer import extended
from loraplex_adapters.layout import BaseModel
from loraplex_adapters.manifest import Limits
from loraplex_adapters.store import AdapterStore, StoredAdapter


def judge_and_store(
    store: AdapterStore, folder: Path, base_folder: Path, max_rank: int
) -> StoredAdapter:
    """Raises AdapterError; what was stored before a refusal has no name, and is swept."""
    base = BaseModel.from_checkpoint(base_folder.name, base_folder)
    stored = store.put(folder, base=base, limits=Limits(max_rank))
    added = store.added_tokens(stored.version)
    if added is not None and base.tokenizer is not None:
        # Whether the ids are what they are said to be.
        extended(Tokenizer.from_file(str(base.tokenizer)), added)
    return stored
