"""Judge an adapter by its config and its header alone: no torch, no tensor read."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from loraplex_adapters.added_tokens import AddedTokens
from loraplex_adapters.checks import check_lora, check_parts
from loraplex_adapters.folder import AdapterFiles
from loraplex_adapters.groups import Group, group_tensors
from loraplex_adapters.header import TensorInfo, read_header
from loraplex_adapters.layout import EMBEDDING, HEAD, BaseModel
from loraplex_adapters.peft_config import LoraRules, parse_config
from loraplex_adapters.report import LoadReport, ModuleReport
from loraplex_adapters.tensor_names import PARTS, Part
from loraplex_adapters.tokenizer_file import judge_tokenizer
from loraplex_adapters.vocabulary import check_vocabulary


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
    added: AddedTokens | None
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
    added, of_tokenizer = judge_tokenizer(files.tokenizer, base.tokenizer)
    resized = base if added is None else base.with_vocabulary(added.stop_id)
    groups = group_tensors(header.tensors, base, rules, is_resized=resized is not base)
    if added is not None:
        _check_vocabulary(groups, base, rules, added)
    modules = tuple(
        _module(name, group, resized, rules, limits.max_rank)
        for name, group in sorted(groups.items())
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
        warnings=(
            *files.warnings,
            *rules.warnings,
            *of_tokenizer,
            *_warnings(rules, base, modules),
        ),
        added_tokens=() if added is None else added.texts,
    )
    return Manifest(modules, added, _is_tied(groups, base, rules), report)


def _check_vocabulary(
    groups: Mapping[str, Group], base: BaseModel, rules: LoraRules, added: AddedTokens
) -> None:
    tensors = {name: group.tensors for name, group in groups.items()}
    token_ids = {
        name: rules.tokens_of(name) for name in groups if "trainable_tokens" in tensors[name]
    }
    check_vocabulary(tensors, token_ids, base, added, is_tied=_is_tied(groups, base, rules))


def _module(
    name: str, group: Group, base: BaseModel, rules: LoraRules, max_rank: int
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


def _is_tied(groups: Mapping[str, Group], base: BaseModel, rules: LoraRules) -> bool:
    """PEFT writes into the base model's embedding, except where it saves a module of its own."""
    embedding, head = (
        set(groups[name].tensors) if name in groups else set() for name in (EMBEDDING, HEAD)
    )
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
