"""What int8 weights cost and save: `python tests/bench/bench_quantization.py MODEL_FOLDER`.

Perplexity and greedy agreement with bfloat16 along Python's own documentation, bytes of the weights
of projections, and processor time of a decoded token. "int4" rounds to 15 steps around zero
in groups of 32, "int4 between" to 16 from the group's least number to its largest (what torchao does); both
then compute in bfloat16: their quality alone is measured. Their speed: bench_weight_only.py.
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from unittest.mock import patch

import torch
from tokenizers import Tokenizer

from loraplex_adapters.cache import AdapterCache
from loraplex_adapters.store import AdapterStore
from loraplex_engine import build
from loraplex_engine.build import LoadedModel, load_model
from loraplex_engine.config import EngineConfig
from loraplex_engine.messages import SamplingParams
from loraplex_engine.model.decoder import projection_layout
from loraplex_engine.model.weights import Checkpoint
from loraplex_engine.offline import Offline, Prompt

GROUP = 32
FORMATS = ("none", "int8", "int4", "int4 between")


@dataclass(frozen=True, slots=True)
class Heard:
    logits: torch.Tensor
    seconds_alone: float  # of processor time for a token
    seconds_together: float


class RoundedToInt4(Checkpoint):
    """A checkpoint whose projections hold what int4 with a scale for each group could."""

    def fused(self, names: list[str]) -> torch.Tensor:  # type: ignore[override]
        weight = super().fused(names)
        if weight.ndim != 2 or "embed_tokens" in names[0] or weight.shape[1] % GROUP:
            return weight
        groups = weight.float().view(len(weight), -1, GROUP)
        return self.rounded(groups).view(weight.shape).to(weight.dtype)

    def rounded(self, groups: torch.Tensor) -> torch.Tensor:
        scale = (groups.abs().amax(-1, keepdim=True) / 7).clamp_min(1e-12)
        return (groups / scale).round() * scale


class RoundedBetween(RoundedToInt4):
    def rounded(self, groups: torch.Tensor) -> torch.Tensor:
        low, high = groups.aminmax(dim=-1, keepdim=True)
        scale = ((high - low) / 15).clamp_min(1e-12)
        return ((groups - low) / scale).round() * scale + low


def load(folder: Path, name: str) -> tuple[EngineConfig, LoadedModel]:
    config = EngineConfig(
        model=folder,
        dtype="bfloat16",
        quantization="int8" if name == "int8" else "none",
        max_model_len=512,
        cpu_kv_cache_bytes=2**27,
        max_loras=1,
        max_lora_rank=8,
    )
    if not name.startswith("int4"):
        return config, load_model(config)
    reader = RoundedToInt4 if name == "int4" else RoundedBetween
    with patch.object(build, "Checkpoint", reader):
        return config, load_model(config)


def weight_bytes(model: LoadedModel) -> int:
    """Of the projections, the output layer among them."""
    layers = model.decoder.layers
    projections = [
        p for layer in layers for p in (layer.qkv, layer.o, layer.mlp.gate_up, layer.mlp.down)
    ]
    return sum(p.weight.num_bytes for p in (*projections, model.decoder.lm_head))


def listen(config: EngineConfig, model: LoadedModel, texts: list[list[int]], store: Path) -> Heard:
    adapters = AdapterCache(
        AdapterStore(store), projection_layout(model.config), max_loras=1, max_lora_rank=8,
        dtype=model.dtype, device=model.device.torch_device, host_bytes=0,
    )  # fmt: skip
    offline = Offline(config, model, adapters, records_logits=True)

    def run(texts: list[list[int]]) -> tuple[torch.Tensor, float]:
        started = time.process_time()
        done = offline.run(
            Prompt(ids[:1], sampling=SamplingParams(max_tokens=len(ids) - 1), forced_ids=ids[1:])
            for ids in texts
        )
        seconds = time.process_time() - started
        logits = torch.cat([c.logits for c in done if c.logits is not None])
        return logits, seconds / len(logits)

    _, alone = run([texts[0]])
    logits, together = run(texts)
    adapters.close()
    return Heard(logits, alone, together)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--store", type=Path, default=Path("/tmp/loraplex-bench-store"))
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    whole = tokenizer.encode("".join(topics[name] for name in sorted(topics))).ids
    stride = len(whole) // args.texts
    texts = [whole[i * stride : i * stride + args.tokens] for i in range(args.texts)]
    targets = torch.tensor([token for ids in texts for token in ids[1:]])
    exact: torch.Tensor | None = None
    for name in FORMATS:
        config, model = load(args.model, name)
        heard = listen(config, model, texts, args.store)
        exact = heard.logits if exact is None else exact
        agreed = heard.logits.argmax(-1) == exact.argmax(-1)
        print(json.dumps({
            "weights": name,
            "projection_mb": round(weight_bytes(model) / 1e6, 1),
            "perplexity": round(torch.nn.functional.cross_entropy(heard.logits, targets).exp().item(), 3),
            "greedy_agreement": round(agreed.float().mean().item(), 4),
            "cpu_ms_a_token_alone": round(1e3 * heard.seconds_alone, 2),
            "cpu_ms_a_token_of_all": round(1e3 * heard.seconds_together, 2),
        }), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
