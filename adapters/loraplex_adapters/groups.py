"""The tensors of an adapter by the base model's modules; what would be left over is refused."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from loraplex_adapters.errors import (
    DuplicateTensor,
    NoModuleMatched,
    UnmatchedTensors,
    UnsupportedFeature,
)
from loraplex_adapters.header import TensorInfo
from loraplex_adapters.layout import EMBEDDING, HEAD, BaseModel
from loraplex_adapters.peft_config import LoraRules
from loraplex_adapters.tensor_names import Part, TensorName, read_name

EXPERTS = re.compile(r"experts(\.base_layer)*\.lora_[AB]\.")
MAX_NAMED = 8  # tensors named in an error


@dataclass(slots=True)
class Group:
    """The tensors of one module."""

    path: str  # the module as the adapter calls it, which is what its patterns match
    tensors: dict[Part, TensorInfo] = field(default_factory=dict)
    copies: dict[Part, TensorInfo] = field(default_factory=dict)  # of what PEFT may save twice
    original: TensorInfo | None = None  # the weight of which `weight` is a copy that was trained
    has_base: bool = False  # `weight` is what was there before training

    @property
    def base_weight(self) -> TensorInfo | None:
        return self.tensors["weight"] if self.has_base else self.original

    @property
    def own_parts(self) -> set[Part]:
        return self.tensors.keys() - ({"weight"} if self.has_base else set())


def group_tensors(
    tensors: Iterable[TensorInfo], base: BaseModel, rules: LoraRules, *, is_resized: bool
) -> dict[str, Group]:
    groups: dict[str, Group] = {}
    unmatched: list[str] = []
    for tensor in tensors:
        _refuse_experts(tensor.name)
        name = read_name(tensor.name)
        module = None if name is None else _find_module(name, base)
        is_vocabulary = module in (EMBEDDING, HEAD)
        if name is None or module is None or (name.source == "original" and not is_vocabulary):
            unmatched.append(tensor.name)
            continue
        group = groups.setdefault(module, Group(name.path))
        if name.source == "original":
            group.original = tensor
            continue
        parts = group.copies if name.source == "copy" and is_vocabulary else group.tensors
        if name.part in parts:
            other = parts[name.part].name
            raise DuplicateTensor(
                f"{other} and {tensor.name} are the same part", tensors=[other, tensor.name]
            )
        parts[name.part] = tensor
        group.has_base |= name.source == "base" and is_vocabulary
    if not groups:
        raise NoModuleMatched(tensors=unmatched[:MAX_NAMED], num_tensors=len(unmatched))
    if unmatched:
        raise UnmatchedTensors(
            f"{len(unmatched)} tensors match no module, the first is {unmatched[0]}",
            tensors=unmatched[:MAX_NAMED],
            num_tensors=len(unmatched),
        )
    for group in groups.values():
        group.tensors = {**group.copies, **group.tensors}
    _give_base_weights(groups, base, rules, is_resized=is_resized)
    kept = {name: group for name, group in groups.items() if group.tensors}
    if not kept:
        raise NoModuleMatched("there is nothing that was trained", num_tensors=len(groups))
    return kept


def _give_base_weights(
    groups: dict[str, Group], base: BaseModel, rules: LoraRules, *, is_resized: bool
) -> None:
    """A tied vocabulary was one weight when training began, however often it is saved."""
    embedding, head = (groups.get(name) or Group(name) for name in (EMBEDDING, HEAD))
    weight = embedding.base_weight or head.base_weight
    is_one = base.ties_embeddings and (is_resized or "trainable_tokens" in embedding.tensors)
    if weight is None or not is_one:
        return
    if not rules.tokens_of(HEAD):
        head.tensors.pop("trainable_tokens", None)  # those of the embedding, once more
    is_apart = "weight" in embedding.own_parts and rules.saves(EMBEDDING)
    if is_apart or {"weight", "trainable_tokens"} & head.own_parts:
        groups[HEAD] = head
        head.tensors.setdefault("weight", weight)
    elif head.has_base:
        del head.tensors["weight"]
    groups[EMBEDDING] = embedding
    embedding.tensors.setdefault("weight", weight)


def _refuse_experts(name: str) -> None:
    if EXPERTS.search(name):
        raise UnsupportedFeature(
            f"{name} needs target_parameters, which is not served",
            key="target_parameters",
            tensor=name,
        )


def _find_module(name: TensorName, base: BaseModel) -> str | None:
    """The base model's module: as named, inside `model.`, or without a multimodal model's wrapper.

    Mixtral's block of experts is called `mlp` by transformers 5.
    """
    bare = ".".join(part for part in name.path.split(".") if part != "language_model")
    sparse = name.path.replace(".mlp.", ".block_sparse_moe.")
    candidates = (name.path, f"model.{name.path}", bare, f"model.{bare}", sparse)
    module = next((each for each in candidates if each in base.modules), None)
    if module is not None and name.part == "bias" and not base.modules[module].has_bias:
        return None  # the base model it was trained on has one
    return module
