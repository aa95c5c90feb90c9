"""Whether every added token has its rows, in the embedding and in the head, and every row its token."""

from collections.abc import Mapping

from loraplex_adapters.added_tokens import AddedTokens
from loraplex_adapters.checks import VOCABULARY_DIM
from loraplex_adapters.errors import RowsWithoutTokens, TokensWithoutRows
from loraplex_adapters.header import TensorInfo
from loraplex_adapters.layout import EMBEDDING, HEAD, BaseModel
from loraplex_adapters.tensor_names import Part

Modules = Mapping[str, Mapping[Part, TensorInfo]]


def check_vocabulary(
    modules: Modules,
    token_ids: Mapping[str, tuple[int, ...]],
    base: BaseModel,
    added: AddedTokens,
    *,
    is_tied: bool,
) -> None:
    """`base` is as it is without the adapter; shapes that fit no vocabulary are not looked at."""
    num_base, num_tokens = base.vocab_size, max(base.vocab_size, added.stop_id)
    for (module, part), dim in VOCABULARY_DIM.items():
        tensor = modules.get(module, {}).get(part)
        if tensor is None or len(tensor.shape) <= dim:
            continue
        found = tensor.shape[dim]
        if found > num_tokens:
            raise RowsWithoutTokens(
                f"{tensor.name} has {found} rows, the vocabulary {num_tokens} tokens",
                tensor=tensor.name,
                found=found,
                expected=num_tokens,
            )
        if num_base <= found < num_tokens:
            raise _without_rows(tensor.name, found, num_tokens)
    if added.stop_id <= num_base:
        return
    new = set(range(num_base, num_tokens))
    for module in (EMBEDDING, HEAD):
        source = EMBEDDING if module == HEAD and is_tied else module
        if "weight" not in modules.get(source, {}) and not new <= set(token_ids.get(source, ())):
            raise _without_rows(module, num_base, num_tokens)


def _without_rows(name: str, found: int, expected: int) -> TokensWithoutRows:
    return TokensWithoutRows(
        f"{name} has {found} rows, the vocabulary {expected} tokens",
        tensor=name,
        found=found,
        expected=expected,
    )
