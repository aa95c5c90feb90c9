"""Errors of adapters: each has a stable `code` and its facts in `data`.

AdapterError
├── MalformedAdapter         the files are not what PEFT saves
│   ├── BadArchive              bad_archive
│   ├── MissingFile             missing_file
│   ├── UnsafePath              unsafe_path
│   ├── PickleRefused           pickle_refused
│   ├── LfsPointer              lfs_pointer
│   ├── NotSafetensors          not_safetensors
│   ├── TruncatedFile           truncated_file
│   ├── HeaderTooLong           header_too_long
│   ├── BadHeader               bad_header
│   ├── OverlappingTensors      overlapping_tensors
│   ├── BadTensorDtype          bad_tensor_dtype
│   ├── DuplicateTensor         duplicate_tensor
│   ├── IncompletePair          incomplete_pair
│   ├── NonFiniteTensor         non_finite_tensor
│   ├── ConfigNotJson           config_not_json
│   ├── ConfigNotObject         config_not_object
│   ├── NotPeft                 not_peft
│   ├── BadConfigValue          bad_config_value
│   ├── BadTokenizer            bad_tokenizer
│   └── TokenIdGap              token_id_gap
├── IncompatibleAdapter      honest files that this base model or engine cannot serve
│   ├── NoModuleMatched         no_module_matched
│   ├── UnmatchedTensors        unmatched_tensors
│   ├── ShapeMismatch           shape_mismatch
│   ├── RankMismatch            rank_mismatch
│   ├── RankTooLarge            rank_too_large
│   ├── AdapterTooLarge         adapter_too_large
│   ├── ForeignTokenizer        foreign_tokenizer
│   ├── TokensWithoutRows       tokens_without_rows
│   ├── RowsWithoutTokens       rows_without_tokens
│   └── UnsupportedFeature      unsupported_feature
├── StoreError
│   ├── UnknownVersion          unknown_version
│   └── CorruptVersion          corrupt_version
└── RegistryError
    ├── UnknownName             unknown_name
    └── NameTaken               name_taken
"""

from typing import ClassVar


class AdapterError(Exception):
    """The root of all errors about adapters."""

    code: ClassVar[str] = "adapter_error"

    def __init__(self, message: str | None = None, **data: object) -> None:
        super().__init__(message or self.__doc__)
        self.data = data


class MalformedAdapter(AdapterError):
    """The files are not what PEFT saves."""

    code = "malformed_adapter"


class BadArchive(MalformedAdapter):
    """The archive is neither zip nor tar, or holds something else than one adapter."""

    code = "bad_archive"


class MissingFile(MalformedAdapter):
    """A file that every adapter has is not there."""

    code = "missing_file"


class UnsafePath(MalformedAdapter):
    """A name in the adapter leads outside its folder: a link, a special file, a traversal."""

    code = "unsafe_path"


class PickleRefused(MalformedAdapter):
    """The weights are a pickle, which may run code when it is read; save them as safetensors."""

    code = "pickle_refused"


class LfsPointer(MalformedAdapter):
    """The file is a Git LFS pointer: the content itself was never downloaded."""

    code = "lfs_pointer"


class NotSafetensors(MalformedAdapter):
    """The weights file is not in the safetensors format."""

    code = "not_safetensors"


class TruncatedFile(MalformedAdapter):
    """The weights file ends before its last tensor does."""

    code = "truncated_file"


class HeaderTooLong(MalformedAdapter):
    """The weights file claims a header longer than any adapter's."""

    code = "header_too_long"


class BadHeader(MalformedAdapter):
    """The weights file's header breaks the safetensors format."""

    code = "bad_header"


class OverlappingTensors(MalformedAdapter):
    """Two tensors claim the same bytes, or bytes belong to none."""

    code = "overlapping_tensors"


class BadTensorDtype(MalformedAdapter):
    """A tensor is not float32, float16 or bfloat16."""

    code = "bad_tensor_dtype"


class DuplicateTensor(MalformedAdapter):
    """Two tensors name the same factor of the same module."""

    code = "duplicate_tensor"


class IncompletePair(MalformedAdapter):
    """A module has only one of lora_A and lora_B."""

    code = "incomplete_pair"


class NonFiniteTensor(MalformedAdapter):
    """A tensor holds NaN or infinity."""

    code = "non_finite_tensor"


class ConfigNotJson(MalformedAdapter):
    """adapter_config.json is not JSON."""

    code = "config_not_json"


class ConfigNotObject(MalformedAdapter):
    """adapter_config.json is JSON but not an object."""

    code = "config_not_object"


class NotPeft(MalformedAdapter):
    """adapter_config.json is not one of PEFT's."""

    code = "not_peft"


class BadConfigValue(MalformedAdapter):
    """A value in adapter_config.json cannot be what PEFT wrote."""

    code = "bad_config_value"


class BadTokenizer(MalformedAdapter):
    """The adapter's tokenizer.json, or a file beside it, is not what a tokenizer saves."""

    code = "bad_tokenizer"


class TokenIdGap(MalformedAdapter):
    """The ids of added tokens do not follow the base model's one after the other."""

    code = "token_id_gap"


class IncompatibleAdapter(AdapterError):
    """The adapter is honest, but not servable on this base model by this engine."""

    code = "incompatible_adapter"


class NoModuleMatched(IncompatibleAdapter):
    """No tensor belongs to a module of the base model, so the adapter would do nothing."""

    code = "no_module_matched"


class UnmatchedTensors(IncompatibleAdapter):
    """Some tensors belong to no module of the base model, so answers would be wrong."""

    code = "unmatched_tensors"


class ShapeMismatch(IncompatibleAdapter):
    """A tensor's shape does not fit the base model's module."""

    code = "shape_mismatch"


class RankMismatch(IncompatibleAdapter):
    """A tensor's rank is not the one the config gives its module, so its scale is unknown."""

    code = "rank_mismatch"


class RankTooLarge(IncompatibleAdapter):
    """The adapter's rank exceeds what this engine was started with."""

    code = "rank_too_large"


class AdapterTooLarge(IncompatibleAdapter):
    """The adapter has more bytes than are allowed."""

    code = "adapter_too_large"


class ForeignTokenizer(IncompatibleAdapter):
    """The adapter's tokenizer is not the base model's with added tokens; `key` names what differs."""

    code = "foreign_tokenizer"


class TokensWithoutRows(IncompatibleAdapter):
    """The tokenizer adds tokens for which the adapter has no rows in the embedding or the head."""

    code = "tokens_without_rows"


class RowsWithoutTokens(IncompatibleAdapter):
    """The embedding or the head has rows for which the tokenizer has no token."""

    code = "rows_without_tokens"


class UnsupportedFeature(IncompatibleAdapter):
    """The adapter uses a feature of PEFT that is not served; `key` names it."""

    code = "unsupported_feature"


class StoreError(AdapterError):
    """The root of the store's errors."""

    code = "store_error"


class UnknownVersion(StoreError):
    """The store holds no such version."""

    code = "unknown_version"


class CorruptVersion(StoreError):
    """The bytes on disk are not those the version was named after."""

    code = "corrupt_version"


class RegistryError(AdapterError):
    """The root of the registry's errors."""

    code = "registry_error"


class UnknownName(RegistryError):
    """The tenant has no adapter of this name."""

    code = "unknown_name"


class NameTaken(RegistryError):
    """The tenant already has an adapter of this name."""

    code = "name_taken"
