"""Judge an adapter by its config and its header alone: no torch, no tensor read."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from loraplex_adapters.checks import check_lora, check_parts
from loraplex_adapters.errors import (
    DuplicateTensor,
    NoModuleMatched,
    UnmatchedTensors,
    UnsupportedFeature,
)
from loraplex_adapters.folder import AdapterFiles
from loraplex_adapters.header import TensorInfo, read_header
from loraplex_adapters.layout import EMBEDDING, HEAD, BaseModel
from loraplex_adapters.peft_config import LoraRules, parse_config
from loraplex_adapters.report import LoadReport, ModuleReport
from loraplex_adapters.tensor_names import PARTS, Part, TensorName, read_name

EXPERTS = re.compile(r"experts(\.base_layer)*\.lora_[AB]\.")
MAX_NAMED = 8  # tensors named in an error


@dataclass(frozen=True, slots=True)
class AdaptedModule:
    """One module of the base model and what the adapter has for it; rank 0: no LoRA.

    lora_A: [rank, in_features], lora_B: [out_features, rank], whatever kind of module it is.
    """

    name: str
    rank: int
    alpha: float
    scale: float
    tensors: Mapping[Part, TensorInfo]  # in the order of PARTS
    token_ids: tuple[int, ...] = ()  # whose rows `trainable_tokens` are

    @property
    def num_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.tensors.values())


@dataclass(frozen=True, slots=True)
class Manifest:
    """An adapter that can be served: its modules in order of their names."""

    modules: tuple[AdaptedModule, ...]
    is_tied: bool  # what replaces rows of the embedding, or all of it, holds for the head too
    report: LoadReport


@dataclass(frozen=True, slots=True)
class Limits:
    """What one adapter may take."""

    max_rank: int
    max_bytes: int = 8 << 30


def judge(files: AdapterFiles, base: BaseModel, limits: Limits) -> Manifest:
    """The manifest of an adapter that every check of this package lets pass."""
    rules = parse_config(files.config)
    header = read_header(files.weights, files.weights_bytes)
    groups = _group(header.tensors, base)
    modules = tuple(
        _module(name, group, base, rules, limits.max_rank) for name, group in sorted(groups.items())
    )
    report = LoadReport(
        base_model=rules.base_name,
        rank=max(module.rank for module in modules),
        num_bytes=sum(module.num_bytes for module in modules),
        modules=tuple(_report(module) for module in modules),
        unadapted=tuple(
            sorted(
                name
                for name, shape in base.modules.items()
                if shape.kind == "linear" and name not in groups
            )
        ),
        warnings=(*files.warnings, *rules.warnings, *_warnings(rules, base, modules)),
    )
    return Manifest(modules, _is_tied(modules, base, rules), report)


@dataclass(slots=True)
class _Group:
    path: str  # the module as the adapter calls it, which is what its patterns match
    tensors: dict[Part, TensorInfo]


def _group(tensors: Iterable[TensorInfo], base: BaseModel) -> dict[str, _Group]:
    """The tensors of each of the base model's modules; refuses what would be left over."""
    groups: dict[str, _Group] = {}
    unmatched: list[str] = []
    for tensor in tensors:
        _refuse_experts(tensor.name)
        name = read_name(tensor.name)
        module = None if name is None else _find_module(name, base)
        if name is None or module is None:
            unmatched.append(tensor.name)
            continue
        group = groups.setdefault(module, _Group(name.path, {}))
        if name.part in group.tensors:
            other = group.tensors[name.part].name
            raise DuplicateTensor(
                f"{other} and {tensor.name} are the same part", tensors=[other, tensor.name]
            )
        group.tensors[name.part] = tensor
    if not groups:
        raise NoModuleMatched(tensors=unmatched[:MAX_NAMED], num_tensors=len(unmatched))
    if unmatched:
        raise UnmatchedTensors(
            f"{len(unmatched)} tensors match no module, the first is {unmatched[0]}",
            tensors=unmatched[:MAX_NAMED],
            num_tensors=len(unmatched),
        )
    return groups


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


def _module(
    name: str, group: _Group, base: BaseModel, rules: LoraRules, max_rank: int
) -> AdaptedModule:
    shape, tensors = base.modules[name], group.tensors
    token_ids = rules.tokens_of(name) if "trainable_tokens" in tensors else ()
    check_parts(name, shape, tensors, token_ids)
    ordered = {part: tensors[part] for part in PARTS if part in tensors}
    if "lora_A.weight" not in tensors:
        return AdaptedModule(name, 0, 0.0, 0.0, ordered, token_ids)
    rank = rules.rank_of(group.path)
    check_lora(name, tensors, rank, max_rank, needs_magnitude=rules.use_dora)
    alpha, scale = rules.alpha_of(group.path), rules.scale_of(group.path)
    return AdaptedModule(name, rank, alpha, scale, ordered, token_ids)


def _report(module: AdaptedModule) -> ModuleReport:
    parts = tuple(part for part in module.tensors if part not in ("lora_A.weight", "lora_B.weight"))
    return ModuleReport(
        module.name, module.rank, module.alpha, module.scale, module.num_bytes, parts
    )


def _is_tied(modules: Iterable[AdaptedModule], base: BaseModel, rules: LoraRules) -> bool:
    """PEFT writes into the base model's embedding, except where it saves a module of its own."""
    parts = {module.name: set(module.tensors) for module in modules}
    embedding, head = parts.get(EMBEDDING) or set(), parts.get(HEAD) or set()
    if not base.ties_embeddings or {"weight", "trainable_tokens"} & head:
        return False
    return "trainable_tokens" in embedding or ("weight" in embedding and not rules.saves(EMBEDDING))


def _warnings(rules: LoraRules, base: BaseModel, modules: Iterable[AdaptedModule]) -> list[str]:
    warnings = []
    if rules.base_name and base.name and rules.base_name != base.name:
        warnings.append(
            f"the adapter was trained on {rules.base_name!r}, it is served on {base.name!r}"
        )
    if not rules.use_dora and any("lora_magnitude_vector" in m.tensors for m in modules):
        warnings.append("use_dora is not set, but magnitude vectors are there: served as DoRA")
    return warnings
