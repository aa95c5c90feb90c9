"""What an engine is started with. Names mean what they mean in vLLM; None asks for what fits the machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from loraplex_engine.errors import InvalidConfig
from loraplex_engine.messages import TIERS
from loraplex_engine.scheduling.policies import PolicyName

Dtype = Literal["auto", "bfloat16", "float16", "float32"]
DeviceKind = Literal["auto", "cpu", "cuda"]
Quantization = Literal["none", "int8"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one engine, valid once made."""

    model: Path  # a Hugging Face folder: config.json and safetensors
    dtype: Dtype = "auto"  # the checkpoint's own
    device: DeviceKind = "auto"
    quantization: Quantization = "none"  # of the weights of projections; CPU only
    max_model_len: int | None = None  # tokens, prompt and completion; None: what the model knows
    max_num_seqs: int | None = None  # running at once
    max_num_batched_tokens: int | None = None  # in one step
    block_size: int = 16  # tokens
    gpu_memory_utilization: float = 0.9  # of the device's memory, weights and slots included
    cpu_kv_cache_bytes: int | None = None  # the CPU's twin of gpu_memory_utilization
    host_kv_bytes: int | None = None  # for KV of preempted work; None: what the host can spare
    enable_prefix_caching: bool = True
    max_loras: int = 8  # device slots
    max_lora_rank: int = 64
    max_cpu_lora_bytes: int = 512 * 2**20  # loaded adapters kept below the slots
    max_lora_extra_bytes: int = 256 * 2**20  # on the device, of what adapters have beside LoRA
    enforce_eager: bool = False  # no CUDA graphs of decode steps
    scheduling_policy: PolicyName = "hfs"
    abort_preempted: str = ""  # tiers, by commas, whose preempted requests end instead of waiting
    steps_ahead: int = 0  # planned and launched while the device works on the one before: 0 or 1
    max_queue_s: float = 300.0  # a live request that would wait longer is refused at once
    threads: int | None = None  # of the CPU's kernels; None: as the environment says

    def __post_init__(self) -> None:
        _check_choice("dtype", self.dtype, get_args(Dtype))
        _check_choice("device", self.device, get_args(DeviceKind))
        _check_choice("quantization", self.quantization, get_args(Quantization))
        _check_choice("scheduling_policy", self.scheduling_policy, get_args(PolicyName))
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "threads"):
            value = getattr(self, name)
            if value is not None:
                # A prompt's chunks are of at least 16 tokens where fairness decides their size.
                _check_at_least(name, value, 16 if name == "max_num_batched_tokens" else 1)
        _check_at_least("max_loras", self.max_loras, 1)
        _check_at_least("max_lora_rank", self.max_lora_rank, 1)
        _check_at_least("max_cpu_lora_bytes", self.max_cpu_lora_bytes, 0)
        _check_at_least("max_lora_extra_bytes", self.max_lora_extra_bytes, 0)
        if self.block_size < 1 or self.block_size % 16:
            raise InvalidConfig(f"block_size must be a multiple of 16, not {self.block_size}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise InvalidConfig(
                f"gpu_memory_utilization must be in (0, 1], not {self.gpu_memory_utilization}"
            )
        if self.steps_ahead not in (0, 1) or (self.steps_ahead and self.scheduling_policy != "hfs"):
            raise InvalidConfig("steps_ahead must be 0, or 1 with scheduling_policy hfs")
        if not self.abort_tiers <= set(TIERS) or (
            self.abort_tiers and self.scheduling_policy != "hfs"
        ):
            raise InvalidConfig("abort_preempted names tiers, with scheduling_policy hfs")
        if not self.max_queue_s > 0:
            raise InvalidConfig(f"max_queue_s must be positive, not {self.max_queue_s}")
        if self.host_kv_bytes is not None:
            _check_at_least("host_kv_bytes", self.host_kv_bytes, 0)
        if self.cpu_kv_cache_bytes is not None:
            _check_at_least("cpu_kv_cache_bytes", self.cpu_kv_cache_bytes, 1)

    @property
    def abort_tiers(self) -> set[str]:
        return {name.strip() for name in self.abort_preempted.split(",")} - {""}


def _check_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InvalidConfig(f"{name} must be at least {least}, not {value}", setting=name)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidConfig(f"{name} must be one of {', '.join(choices)}, not {value!r}")
