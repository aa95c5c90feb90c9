"""adapter_config.json: what it says of ranks and scales, and what of it is not served.

The tensors decide which modules are adapted, so target_modules and its kin are not interpreted.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from loraplex_adapters.errors import (
    BadConfigValue,
    ConfigNotJson,
    ConfigNotObject,
    NotPeft,
    UnsupportedFeature,
)

DEFAULT_RANK = DEFAULT_ALPHA = 8  # LoraConfig's own
MARKS = {"peft_type", "r", "lora_alpha", "target_modules"}  # one of these is in every config
# Where the base model is left alone by the initialisation, the saved tensors say it all.
PLAIN_INITS = (True, False, None, "gaussian", "eva", "orthogonal")
UNSERVED = (
    "target_parameters",
    "layer_replication",
    "use_qalora",
    "use_bdlora",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "enable_lora",  # early forks: some parts of a fused projection
)
HARMLESS = {
    "base_model_name_or_path", "revision", "task_type", "inference_mode", "auto_mapping",
    "peft_version", "peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern",
    "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "lora_dropout",
    "fan_in_fan_out", "init_lora_weights", "bias", "megatron_config", "megatron_core",
    "loftq_config", "eva_config", "corda_config", "lora_ga_config", "velora_config",
    "qalora_group_size", "runtime_config", "ensure_weight_tying", "use_dora", "lora_bias",
    "modules_to_save", "trainable_token_indices",
}  # fmt: skip
MAX_PATTERNS = 4096
MAX_PATTERN_LENGTH = 256
# What one pattern may hold, so that matching stays a low power of a module name's length.
MAX_REPEATS, MAX_OPTIONALS, MAX_GROUPS = 3, 6, 4
REPEATED_GROUP = re.compile(r"\)[*+{]")

Pattern = tuple[re.Pattern[str], float]


@dataclass(frozen=True, slots=True)
class LoraRules:
    """A config's rule for each module's rank and scale."""

    rank: int
    alpha: float
    use_rslora: bool
    rank_pattern: tuple[Pattern, ...]
    alpha_pattern: tuple[Pattern, ...]
    use_dora: bool
    modules_to_save: tuple[str, ...]
    token_ids: Mapping[str, tuple[int, ...]]  # by the end of the module's path
    base_name: str | None
    warnings: tuple[str, ...]

    def rank_of(self, module: str) -> int:
        return int(_first_match(self.rank_pattern, module, self.rank))

    def alpha_of(self, module: str) -> float:
        return float(_first_match(self.alpha_pattern, module, self.alpha))

    def scale_of(self, module: str) -> float:
        """What B A x is multiplied by; `module` is the path as PEFT saw it."""
        rank = self.rank_of(module)
        return self.alpha_of(module) / (math.sqrt(rank) if self.use_rslora else rank)

    def saves(self, module: str) -> bool:
        """Whether PEFT keeps a copy of its own of this module."""
        return any(_ends_with(module, name) for name in self.modules_to_save)

    def tokens_of(self, module: str) -> tuple[int, ...]:
        """Whose rows of this module are replaced."""
        found = (ids for name, ids in self.token_ids.items() if _ends_with(module, name))
        return next(found, ())


def parse_config(raw: bytes) -> LoraRules:
    """The rules of a config, or the reason why it cannot be served."""
    config = parse_object(raw)
    if not MARKS & config.keys():
        raise NotPeft(keys=sorted(config)[:10])
    warnings = _warnings(config)
    peft_type = config.get("peft_type") or "LORA"
    if peft_type != "LORA":
        raise _unsupported("peft_type", peft_type)
    for key in UNSERVED:
        if config.get(key):
            raise _unsupported(key, config[key])
    init = config.get("init_lora_weights")
    if not isinstance(init, bool | str | None) or init not in PLAIN_INITS:
        raise _unsupported("init_lora_weights", init)
    base_name = config.get("base_model_name_or_path")
    return LoraRules(
        rank=_rank("r", config.get("r", DEFAULT_RANK)),
        alpha=_number("lora_alpha", config.get("lora_alpha", DEFAULT_ALPHA)),
        use_rslora=_flag("use_rslora", config.get("use_rslora")),
        rank_pattern=tuple(
            (key, _rank("rank_pattern", value)) for key, value in _patterns(config, "rank_pattern")
        ),
        alpha_pattern=tuple(
            (key, _number("alpha_pattern", value))
            for key, value in _patterns(config, "alpha_pattern")
        ),
        use_dora=_flag("use_dora", config.get("use_dora")),
        modules_to_save=_names("modules_to_save", config.get("modules_to_save")),
        token_ids=_token_ids(config.get("trainable_token_indices")),
        base_name=base_name if isinstance(base_name, str) else None,
        warnings=tuple(warnings),
    )


def parse_object(raw: bytes) -> dict[str, object]:
    """A config as it stands, unjudged."""
    try:
        config = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ConfigNotJson(f"adapter_config.json is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ConfigNotObject(found=type(config).__name__)
    return config


def _warnings(config: Mapping[str, object]) -> list[str]:
    unknown = sorted(config.keys() - HARMLESS - set(UNSERVED))
    warnings = [f"unknown config key {key[:64]!r} is ignored" for key in unknown]
    warnings += [
        f"config key {key!r} is missing; PEFT's default is taken"
        for key in ("peft_type", "r", "lora_alpha")
        if key not in config
    ]
    if config.get("fan_in_fan_out"):
        warnings.append("fan_in_fan_out is ignored: the base model's modules are not transposed")
    return warnings


def _unsupported(key: str, value: object) -> UnsupportedFeature:
    shown = str(value)[:64]
    return UnsupportedFeature(f"{key} = {shown} is not served", key=key, value=shown)


def _patterns(config: Mapping[str, object], key: str) -> list[tuple[re.Pattern[str], object]]:
    """PEFT's matching rule, compiled; a pattern that could run for minutes is refused."""
    value = config.get(key) or {}
    if not isinstance(value, dict) or len(value) > MAX_PATTERNS:
        raise BadConfigValue(f"{key} is not an object of patterns", key=key)
    compiled = []
    for pattern, entry in value.items():
        if _is_costly(pattern):
            raise BadConfigValue(
                f"the {key} {pattern[:64]!r} is too costly to match", key=key, pattern=pattern[:64]
            )
        try:
            compiled.append((re.compile(rf"(.*\.)?({pattern})$"), entry))
        except re.error as error:
            raise BadConfigValue(
                f"the {key} {pattern!r} is no regular expression: {error}", key=key, pattern=pattern
            ) from None
    return compiled


def _is_costly(pattern: str) -> bool:
    return (
        len(pattern) > MAX_PATTERN_LENGTH
        or sum(pattern.count(sign) for sign in "*+{") > MAX_REPEATS
        or pattern.count("?") - pattern.count("(?") > MAX_OPTIONALS
        or pattern.count("(") > MAX_GROUPS
        or REPEATED_GROUP.search(pattern) is not None
    )


def _first_match(patterns: tuple[Pattern, ...], module: str, default: float) -> float:
    return next((value for pattern, value in patterns if pattern.match(module)), default)


def _rank(key: str, value: object) -> int:
    number = _number(key, value)
    if number < 1 or number != int(number):
        raise BadConfigValue(f"{key} = {value} is not a rank", key=key, value=str(value)[:64])
    return int(number)


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e9:
        raise BadConfigValue(f"{key} = {str(value)[:64]} is not a number", key=key)
    if not math.isfinite(value):
        raise BadConfigValue(f"{key} is not finite", key=key)
    return float(value)


def _ends_with(module: str, name: str) -> bool:
    """PEFT's rule for names that are not patterns."""
    return module == name or module.endswith(f".{name}")


def _names(key: str, value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise BadConfigValue(f"{key} is not a list of names", key=key)
    return tuple(value)


def _token_ids(value: object) -> dict[str, tuple[int, ...]]:
    """A bare list is of the embedding."""
    if value is None:
        return {}
    found = value if isinstance(value, dict) else {"embed_tokens": value}
    return {name: tuple(_ids(ids)) for name, ids in found.items()}


def _ids(value: object) -> list[int]:
    if isinstance(value, list) and all(type(i) is int and 0 <= i < 1 << 31 for i in value):
        return value
    key = "trainable_token_indices"
    raise BadConfigValue(f"{key} is neither a list of token ids nor one per module", key=key)


def _flag(key: str, value: object) -> bool:
    if not isinstance(value, bool | None):
        raise BadConfigValue(f"{key} = {str(value)[:64]} is neither true nor false", key=key)
    return bool(value)
