"""Puts an engine together: model, memory, policy and loop, sized to the machine it runs on."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import uuid4

import torch

from loraplex_adapters.cache import AdapterCache
from loraplex_adapters.store import AdapterStore
from loraplex_engine.adapter_tier import AdapterTier
from loraplex_engine.calibration import calibrate, time_copies
from loraplex_engine.config import EngineConfig
from loraplex_engine.core import Engine
from loraplex_engine.detokenizer import BaseDecoder
from loraplex_engine.device import Device, KvShape, LayerKv
from loraplex_engine.errors import CannotStart, InvalidConfig, UnsupportedModel
from loraplex_engine.first_launches import launch_every_kernel
from loraplex_engine.graphs import DecodeGraphs, GraphLimits
from loraplex_engine.intake import Served
from loraplex_engine.messages import PROTOCOL_VERSION, Hello
from loraplex_engine.model.adaptable import adaptable_modules
from loraplex_engine.model.config import ModelConfig, read_model_config
from loraplex_engine.model.decoder import Decoder, projection_layout
from loraplex_engine.model.weights import Checkpoint
from loraplex_engine.pace import Pace
from loraplex_engine.prefix_cache import PagedKv
from loraplex_engine.runner import ModelRunner
from loraplex_engine.sampler import Sampler, TokenSampler
from loraplex_engine.scheduling.config import SchedulerConfig, default_targets
from loraplex_engine.scheduling.policies import make_policy
from loraplex_engine.self_test import QUANTIZED_TOLERANCE, ParityTest
from loraplex_kernels.warm_up import warm_up

log = logging.getLogger(__name__)

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
CPU_TOKENS_PER_SEQ = 512  # KV held for each of max_num_seqs when nothing else is said
CPU_MEMORY_SHARE = 4  # at most a quarter of what is available goes to KV
HOST_MEMORY_SHARE = 8  # and an eighth to that of preempted work
MOST_HOST_BYTES = 4 * 2**30


class Capacity(NamedTuple):
    """The limits of an engine on this machine, none left open."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    num_host_blocks: int


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in the device's memory, before KV and adapters take their share."""

    config: ModelConfig
    decoder: Decoder
    device: Device
    dtype: torch.dtype
    fingerprint: str
    pace: Pace = field(default_factory=Pace)


def load_model(config: EngineConfig) -> LoadedModel:
    """Compile the kernels and read the weights: the longest part of a start."""
    device = Device(config.device)
    torch.set_num_threads(config.threads or torch.get_num_threads())
    warm_up(device.torch_device.type)
    shape = read_model_config(config.model)
    if config.max_model_len is not None and config.max_model_len > shape.max_position:
        raise InvalidConfig(
            f"max_model_len is {config.max_model_len}, the model knows {shape.max_position}"
        )
    dtype = DTYPES[_dtype_name(config, shape, device)]
    if config.quantization != "none" and device.is_cuda:
        raise InvalidConfig(f"quantization is {config.quantization}, which the GPU does not serve")
    checkpoint = Checkpoint(config.model, dtype, device.torch_device)
    max_position = config.max_model_len or shape.max_position
    decoder = Decoder(shape, checkpoint, max_position, config.quantization)
    _refuse_unread(checkpoint, shape)
    return LoadedModel(shape, decoder, device, dtype, checkpoint.fingerprint())


def _dtype_name(config: EngineConfig, shape: ModelConfig, device: Device) -> str:
    """What to compute in; the CPU kernels have no float16, so there a checkpoint's becomes bfloat16."""
    name = shape.dtype if config.dtype == "auto" else config.dtype
    if name not in DTYPES:
        raise InvalidConfig(f"the checkpoint's dtype is {name}; set dtype to {', '.join(DTYPES)}")
    if name != "float16" or device.is_cuda:
        return name
    if config.dtype == "float16":
        raise InvalidConfig("dtype is float16, which needs a GPU; bfloat16 and float32 do not")
    log.warning("the checkpoint is float16, the CPU computes in bfloat16; float32 keeps all digits")
    return "bfloat16"


def _refuse_unread(checkpoint: Checkpoint, shape: ModelConfig) -> None:
    """A tensor that is left over means a model which is not what its config.json says."""
    tied = {"lm_head.weight"} if shape.ties_embeddings else set()
    unread = [name for name in checkpoint.unread() if name not in tied]
    if unread:
        raise UnsupportedModel(
            f"{shape.architecture} has no use for {len(unread)} tensors of {checkpoint.folder}, "
            f"{unread[0]} among them",
            tensors=unread,
        )


def adapter_cache(config: EngineConfig, model: LoadedModel, store: AdapterStore) -> AdapterCache:
    """The tiers of adapters for a loaded model."""
    layout, base = projection_layout(model.config), adaptable_modules(model.config)
    tensors = Checkpoint(config.model, model.dtype, torch.device("cpu"), says_progress=False)
    kv_shape = _kv_shape(config, model)
    return AdapterCache(
        store,
        layout,
        max_loras=config.max_loras,
        max_lora_rank=config.max_lora_rank,
        dtype=model.dtype,
        device=model.device.torch_device,
        host_bytes=config.max_cpu_lora_bytes,
        base=base,
        base_tensors=tensors,
        extra_bytes=config.max_lora_extra_bytes,
        self_test=ParityTest(
            model.decoder,
            layout,
            base,
            tensors,
            model.device,
            kv_shape,
            model.pace,
            tolerance=None if config.quantization == "none" else QUANTIZED_TOLERANCE,
        ),
    )


def build_engine(
    config: EngineConfig,
    model: LoadedModel,
    adapters: AdapterTier,
    decoder: BaseDecoder,
    *,
    sampler: TokenSampler | None = None,
    is_calibrated: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Engine:
    """An engine over a loaded model; `sampler` replaces the drawing of tokens.

    A calibrated one has run a few seconds of steps and knows how long they take.
    """
    kv_shape = _kv_shape(config, model)
    capacity = fit(config, model, kv_shape)
    kv = PagedKv(capacity.num_blocks, config.block_size, caching=config.enable_prefix_caching)
    has_graphs = has_decode_graphs(config, model)
    arena = model.device.allocate_kv(kv_shape, capacity.num_blocks + has_graphs)
    host = model.device.allocate_host_kv(kv_shape, capacity.num_host_blocks)
    limits = SchedulerConfig(
        max_num_seqs=capacity.max_num_seqs,
        max_num_batched_tokens=capacity.max_num_batched_tokens,
        targets={
            tier: replace(target, may_abort=tier in config.abort_tiers)
            for tier, target in default_targets().items()
        },
        num_host_blocks=capacity.num_host_blocks,
        copy_s_per_block=time_copies(model.device, arena, host),
        copy_overlap=0.0,  # a step that needs a block waits for it
    )
    policy = make_policy(config.scheduling_policy, kv, adapters, limits)
    if model.device.compiles_at_launch:
        launch_every_kernel(model.decoder, arena, adapters.slabs, model.device)
    graphs = None
    if has_graphs:
        graphs = _captured(config, model, capacity, arena, adapters)
    runner = ModelRunner(
        model.decoder,
        arena,
        adapters,
        sampler or Sampler(),
        model.device,
        host,
        ThreadPoolExecutor(1, "steps") if config.steps_ahead else None,
        graphs,
        model.pace,
    )
    if is_calibrated:
        calibrate(
            runner,
            policy,
            kv,
            max_num_seqs=capacity.max_num_seqs,
            max_num_batched_tokens=capacity.max_num_batched_tokens,
        )
    hello = Hello(
        protocol=PROTOCOL_VERSION,
        model_hash=model.fingerprint,
        max_model_len=capacity.max_model_len,
        max_lora_rank=config.max_lora_rank,
        max_loras=config.max_loras,
        num_blocks=capacity.num_blocks,
        block_size=config.block_size,
        device=model.device.name,
        dtype=str(model.dtype).removeprefix("torch."),
    )
    served = Served(
        engine_id=uuid4().hex,
        hello=hello,
        vocab_size=model.config.vocab_size,
        eos_token_ids=model.config.eos_token_ids,
        decoder=decoder,
        max_num_batched_tokens=capacity.max_num_batched_tokens,
        max_queue_s=config.max_queue_s,
    )
    return Engine(served, runner, policy, kv, adapters, clock, steps_ahead=config.steps_ahead)


def has_decode_graphs(config: EngineConfig, model: LoadedModel) -> bool:
    """Experts are run as they are chosen, which no graph can."""
    return model.device.has_graphs and not config.enforce_eager and model.config.experts is None


def _captured(
    config: EngineConfig,
    model: LoadedModel,
    capacity: Capacity,
    arena: list[LayerKv],
    adapters: AdapterTier,
) -> DecodeGraphs:
    """Before anybody waits; the arena has a block beyond those of the capacity."""
    max_blocks = -(-capacity.max_model_len // config.block_size)
    limits = GraphLimits(capacity.max_num_seqs, max_blocks, config.max_loras)
    graphs = DecodeGraphs(model.decoder, arena, adapters.slabs, model.device, limits)
    graphs.capture()
    return graphs


def fit(config: EngineConfig, model: LoadedModel, kv_shape: KvShape) -> Capacity:
    """Fill in what the configuration leaves open, from the model and the memory that is left."""
    is_cuda = model.device.is_cuda
    max_num_seqs = config.max_num_seqs or (256 if is_cuda else 32)
    max_num_batched_tokens = config.max_num_batched_tokens or (2048 if is_cuda else 256)
    wanted_len = config.max_model_len or model.config.max_position
    memory = model.device.memory()
    if is_cuda:
        used = memory.total_bytes - memory.available_bytes
        budget = int(memory.total_bytes * config.gpu_memory_utilization) - used
        budget -= _activation_bytes(model, max_num_seqs, max_num_batched_tokens)
    elif config.cpu_kv_cache_bytes is not None:
        budget = config.cpu_kv_cache_bytes
    else:
        num_tokens = max(wanted_len, max_num_seqs * CPU_TOKENS_PER_SEQ)
        num_blocks = -(-num_tokens // kv_shape.block_size)
        budget = min(memory.available_bytes // CPU_MEMORY_SHARE, num_blocks * kv_shape.block_bytes)
    num_blocks = budget // kv_shape.block_bytes
    if num_blocks < 1:
        raise CannotStart(f"{budget} bytes are left for KV; one block takes {kv_shape.block_bytes}")
    pool_tokens = num_blocks * kv_shape.block_size
    if config.max_model_len is not None and config.max_model_len > pool_tokens:
        raise InvalidConfig(
            f"max_model_len is {config.max_model_len} tokens; the KV cache holds {pool_tokens}"
        )
    return Capacity(
        min(wanted_len, pool_tokens),
        max_num_seqs,
        max_num_batched_tokens,
        num_blocks,
        _num_host_blocks(config, model, kv_shape, num_blocks),
    )


def _num_host_blocks(
    config: EngineConfig, model: LoadedModel, kv_shape: KvShape, num_blocks: int
) -> int:
    """Blocks of the host tier; only preempted work needs them, and hfs alone preempts to it."""
    if config.scheduling_policy != "hfs":
        return 0
    budget = config.host_kv_bytes
    if budget is None:
        spare = model.device.host_memory().available_bytes // HOST_MEMORY_SHARE
        wanted = MOST_HOST_BYTES if model.device.is_cuda else num_blocks * kv_shape.block_bytes // 2
        budget = min(spare, wanted)
    return budget // kv_shape.block_bytes


def _kv_shape(config: EngineConfig, model: LoadedModel) -> KvShape:
    shape = model.config
    return KvShape(
        shape.num_layers, shape.num_kv_heads, config.block_size, shape.head_dim, model.dtype
    )


def _activation_bytes(model: LoadedModel, max_num_seqs: int, max_num_batched_tokens: int) -> int:
    """An upper estimate of a step's intermediate tensors, float32 logits and float64 sampling included."""
    shape = model.config
    copies = 1 if shape.experts is None else shape.experts.per_token
    row = 8 * copies * shape.hidden_size + 4 * copies * shape.intermediate_size
    return max_num_batched_tokens * row * 4 + max_num_seqs * shape.vocab_size * 32
