"""Judge an adapter by its config and its header alone: no torch, no tensor read."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from loraplex_adapters.errors import (
    DuplicateTensor,
    IncompletePair,
    NoModuleMatched,
    RankMismatch,
    RankTooLarge,
    ShapeMismatch,
    UnmatchedTensors,
    UnsupportedFeature,
)
from loraplex_adapters.folder import AdapterFiles
from loraplex_adapters.header import TensorInfo, read_header
from loraplex_adapters.layout import BaseModel
from loraplex_adapters.peft_config import LoraRules, parse_config
from loraplex_adapters.report import LoadReport, ModuleReport

FACTOR = re.compile(r"(?P<path>.+)\.(?P<factor>lora_[AB])(\.[^.]+)?\.weight")
WRAPPERS = {"module", "_orig_mod"}  # of DataParallel and torch.compile
PEFT_PREFIX = "base_model.model."
# Tensors that are no LoRA factor of a linear module, and the config key they come from.
FEATURE_TENSORS = (
    (re.compile(r"\.lora_magnitude_vector(\.|$)"), "use_dora"),
    (re.compile(r"\.lora_B(\.[^.]+)?\.bias$"), "lora_bias"),
    (re.compile(r"\.lora_embedding_[AB](\.|$)"), "target_modules"),
    (re.compile(r"\.trainable_tokens_"), "trainable_token_indices"),
    (re.compile(r"experts(\.base_layer)*\.lora_[AB]\."), "target_parameters"),
    (re.compile(r"\.bias$"), "bias"),
    (re.compile(r"\.modules_to_save\.|(lm_head|embed_tokens)(\.base_layer)?\.weight$"),
     "modules_to_save"),
)  # fmt: skip
VOCABULARY = re.compile(r"(?:^|\.)(lm_head|embed_tokens)\.lora_[AB]\.")
MAX_NAMED = 8  # tensors named in an error


@dataclass(frozen=True, slots=True)
class LoraModule:
    """One adapted module of the base model; a: [rank, in_features], b: [out_features, rank]."""

    name: str
    rank: int
    alpha: float
    scale: float
    a: TensorInfo
    b: TensorInfo

    @property
    def num_bytes(self) -> int:
        return self.a.num_bytes + self.b.num_bytes


@dataclass(frozen=True, slots=True)
class Manifest:
    """An adapter that can be served: its modules in order of their names."""

    modules: tuple[LoraModule, ...]
    report: LoadReport


@dataclass(frozen=True, slots=True)
class Limits:
    """What one adapter may take."""

    max_rank: int
    max_bytes: int = 8 << 30


def judge(files: AdapterFiles, base: BaseModel, limits: Limits) -> Manifest:
    """The manifest of an adapter that every check of this module lets pass."""
    rules = parse_config(files.config)
    header = read_header(files.weights, files.weights_bytes)
    pairs = _pair_up(header.tensors, base)
    modules = tuple(
        _module(name, pair, base, rules, limits.max_rank) for name, pair in sorted(pairs.items())
    )
    report = LoadReport(
        base_model=rules.base_name,
        rank=max(module.rank for module in modules),
        num_bytes=sum(module.num_bytes for module in modules),
        modules=tuple(ModuleReport(m.name, m.rank, m.alpha, m.scale, m.num_bytes) for m in modules),
        unadapted=tuple(sorted(base.modules.keys() - pairs.keys())),
        warnings=(*files.warnings, *rules.warnings, *_base_warnings(rules, base)),
    )
    return Manifest(modules, report)


@dataclass(slots=True)
class _Pair:
    path: str  # the module as the adapter calls it, which is what its patterns match
    factors: dict[str, TensorInfo]


def _pair_up(tensors: Iterable[TensorInfo], base: BaseModel) -> dict[str, _Pair]:
    """Factors by the base model's module; refuses what would be left over."""
    pairs: dict[str, _Pair] = {}
    unmatched: list[str] = []
    for tensor in tensors:
        _refuse_features(tensor.name)
        match = FACTOR.fullmatch(tensor.name)
        path = _own_path(match["path"]) if match else ""
        module = _find_module(path, base)
        if match is None or module is None:
            unmatched.append(tensor.name)
            continue
        pair = pairs.setdefault(module, _Pair(path, {}))
        if match["factor"] in pair.factors:
            other = pair.factors[match["factor"]].name
            raise DuplicateTensor(
                f"{other} and {tensor.name} are the same factor", tensors=[other, tensor.name]
            )
        pair.factors[match["factor"]] = tensor
    _refuse_vocabulary(unmatched)
    if not pairs:
        raise NoModuleMatched(tensors=unmatched[:MAX_NAMED], num_tensors=len(unmatched))
    if unmatched:
        raise UnmatchedTensors(
            f"{len(unmatched)} tensors match no module, the first is {unmatched[0]}",
            tensors=unmatched[:MAX_NAMED],
            num_tensors=len(unmatched),
        )
    return pairs


def _refuse_features(name: str) -> None:
    for pattern, key in FEATURE_TENSORS:
        if pattern.search(name):
            raise UnsupportedFeature(
                f"{name} needs {key}, which is not served", key=key, tensor=name
            )


def _refuse_vocabulary(unmatched: list[str]) -> None:
    """LoRA on a module that every model has, but this engine does not adapt."""
    for name in unmatched:
        if vocabulary := VOCABULARY.search(name):
            raise UnsupportedFeature(
                f"LoRA on {vocabulary[1]} is not served",
                key="target_modules",
                value=vocabulary[1],
                tensor=name,
            )


def _own_path(path: str) -> str:
    """The module's path without what wrappers put around the model."""
    path = ".".join(part for part in path.split(".") if part not in WRAPPERS)
    while path.startswith(PEFT_PREFIX):
        path = path.removeprefix(PEFT_PREFIX)
    return path


def _find_module(path: str, base: BaseModel) -> str | None:
    """The base model's module: as named, inside `model.`, or without a multimodal model's wrapper.

    Mixtral's block of experts is called `mlp` by transformers 5.
    """
    bare = ".".join(part for part in path.split(".") if part != "language_model")
    sparse = path.replace(".mlp.", ".block_sparse_moe.")
    candidates = (path, f"model.{path}", bare, f"model.{bare}", sparse)
    return next((name for name in candidates if name in base.modules), None)


def _module(name: str, pair: _Pair, base: BaseModel, rules: LoraRules, max_rank: int) -> LoraModule:
    missing = {"lora_A", "lora_B"} - pair.factors.keys()
    if missing:
        raise IncompletePair(f"{name} has no {missing.pop()}", module=name)
    a, b = pair.factors["lora_A"], pair.factors["lora_B"]
    rank = rules.rank_of(pair.path)
    check_shape(a, name, base, is_a=True)
    check_shape(b, name, base, is_a=False)
    if not a.shape[0] == b.shape[1] == rank:
        raise RankMismatch(
            f"{name} has rank {a.shape[0]} in A and {b.shape[1]} in B; its config says {rank}",
            module=name,
            expected=rank,
            found=[a.shape[0], b.shape[1]],
        )
    if rank > max_rank:
        raise RankTooLarge(
            f"rank {rank} of {name} exceeds {max_rank}", module=name, rank=rank, limit=max_rank
        )
    return LoraModule(name, rank, rules.alpha_of(pair.path), rules.scale_of(pair.path), a, b)


def check_shape(tensor: TensorInfo, module: str, base: BaseModel, *, is_a: bool) -> None:
    """A is [rank, in_features], B is [out_features, rank]; the rank itself is not looked at."""
    shape = base.modules[module]
    dim, features = (1, shape.in_features) if is_a else (0, shape.out_features)
    if len(tensor.shape) != 2 or tensor.shape[dim] != features or 0 in tensor.shape:
        raise ShapeMismatch(
            f"{tensor.name} is {list(tensor.shape)}, but {module} has {features} features there",
            tensor=tensor.name,
            found=list(tensor.shape),
            expected=["rank", features] if is_a else [features, "rank"],
        )


def _base_warnings(rules: LoraRules, base: BaseModel) -> list[str]:
    if rules.base_name and base.name and rules.base_name != base.name:
        return [f"the adapter was trained on {rules.base_name!r}, it is served on {base.name!r}"]
    return []
