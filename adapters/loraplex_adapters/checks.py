"""Whether the tensors of one module fit each other, the config and the base model."""

from collections.abc import Mapping

from loraplex_adapters.errors import (
    IncompletePair,
    RankMismatch,
    RankTooLarge,
    ShapeMismatch,
    UnsupportedFeature,
)
from loraplex_adapters.header import TensorInfo
from loraplex_adapters.layout import EMBEDDING, HEAD, ModuleShape
from loraplex_adapters.tensor_names import Part

OF_LINEAR: frozenset[Part] = frozenset({"lora_B.bias", "bias"})
OF_NORM: frozenset[Part] = frozenset({"weight"})
OF_VOCABULARY: frozenset[Part] = frozenset({"trainable_tokens"})
VOCABULARY_DIM: Mapping[tuple[str, Part], int] = {  # the one that a resized vocabulary changes
    (EMBEDDING, "lora_A.weight"): 1,
    (EMBEDDING, "weight"): 0,
    (HEAD, "lora_B.weight"): 0,
    (HEAD, "weight"): 0,
    (HEAD, "bias"): 0,
    (HEAD, "lora_B.bias"): 0,
    (HEAD, "lora_magnitude_vector"): 0,
}


def check_parts(
    module: str,
    shape: ModuleShape,
    tensors: Mapping[Part, TensorInfo],
    token_ids: tuple[int, ...] = (),
) -> None:
    """Every tensor belongs to a module of this kind and has its shape; ranks are not looked at."""
    for part, tensor in tensors.items():
        _check_kind(module, shape, part, tensor)
        if part == "trainable_tokens":
            _check_tokens(module, tensor, token_ids, shape.weight_shape[0])
        _check_shape(tensor, module, part, _expected(part, shape, len(token_ids)))
    _check_pair(module, tensors)


def _expected(part: Part, shape: ModuleShape, num_tokens: int) -> tuple[int | None, ...]:
    """None stands for a rank."""
    match part:
        case "lora_A.weight":
            return (None, shape.in_features)
        case "lora_B.weight":
            return (shape.out_features, None)
        case "weight":
            return shape.weight_shape
        case "trainable_tokens":
            return (num_tokens, shape.weight_shape[1])
        case _:
            return (shape.out_features,)


def check_lora(
    module: str,
    tensors: Mapping[Part, TensorInfo],
    rank: int,
    max_rank: int,
    *,
    needs_magnitude: bool = False,
) -> None:
    """A complete pair has the rank that its config says, and no higher one than is served."""
    a, b = tensors["lora_A.weight"], tensors["lora_B.weight"]
    if not a.shape[0] == b.shape[1] == rank:
        raise RankMismatch(
            f"{module} has rank {a.shape[0]} in A and {b.shape[1]} in B; its config says {rank}",
            module=module,
            expected=rank,
            found=[a.shape[0], b.shape[1]],
        )
    if rank > max_rank:
        raise RankTooLarge(
            f"rank {rank} of {module} exceeds {max_rank}", module=module, rank=rank, limit=max_rank
        )
    if needs_magnitude and "lora_magnitude_vector" not in tensors:
        raise IncompletePair(f"{module} has no lora_magnitude_vector", module=module)


def _check_pair(module: str, tensors: Mapping[Part, TensorInfo]) -> None:
    needed: tuple[Part, Part] = ("lora_A.weight", "lora_B.weight")
    for part in ("lora_A.weight", "lora_B.weight", "lora_B.bias", "lora_magnitude_vector"):
        missing = [each for each in needed if each not in tensors]
        if part in tensors and missing:
            raise IncompletePair(f"{module} has no {missing[0].split('.')[0]}", module=module)


def _check_kind(module: str, shape: ModuleShape, part: Part, tensor: TensorInfo) -> None:
    is_possible = {
        "linear": part not in OF_VOCABULARY or module == HEAD,
        "embedding": part not in OF_LINEAR,
        "norm": part in OF_NORM,
    }
    if not is_possible[shape.kind]:
        raise UnsupportedFeature(
            f"{tensor.name}: {module} is of kind {shape.kind}, for which this is not served",
            key="target_modules",
            tensor=tensor.name,
        )


def _check_tokens(
    module: str, tensor: TensorInfo, token_ids: tuple[int, ...], vocab_size: int
) -> None:
    if len(set(token_ids)) != len(token_ids) or len(token_ids) != tensor.shape[0]:
        raise ShapeMismatch(
            f"{tensor.name} has {tensor.shape[0]} rows, trainable_token_indices names "
            f"{len(set(token_ids))} tokens",
            tensor=tensor.name,
            found=list(tensor.shape),
            expected=[len(set(token_ids)), "features"],
        )
    beyond = [token for token in token_ids if token >= vocab_size]
    if beyond:
        raise UnsupportedFeature(
            f"token {beyond[0]} of {module} is beyond the base model's {vocab_size}",
            key="added_tokens",
            tensor=tensor.name,
            found=beyond[0],
            limit=vocab_size,
        )


def _check_shape(
    tensor: TensorInfo, module: str, part: Part, expected: tuple[int | None, ...]
) -> None:
    found = tensor.shape
    named = ["rank" if n is None else n for n in expected]
    if len(found) == len(expected) and 0 not in found:
        wrong = [
            dim
            for dim, (n, m) in enumerate(zip(expected, found, strict=True))
            if n is not None and n != m
        ]
        if not wrong:
            return
        limit = expected[wrong[0]] or 0
        if wrong == [VOCABULARY_DIM.get((module, part))] and found[wrong[0]] > limit:
            raise UnsupportedFeature(
                f"{tensor.name} has {found[wrong[0]]} tokens, the base model {limit}; "
                "its tokenizer.json does not name what is added beyond them",
                key="added_tokens",
                tensor=tensor.name,
                found=found[wrong[0]],
                limit=limit,
            )
    raise ShapeMismatch(
        f"{tensor.name} is {list(found)}, but {module} needs {named}",
        tensor=tensor.name,
        found=list(found),
        expected=named,
    )
