"""transformers and PEFT, as the engine is compared with them."""

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import peft
import torch
from transformers import AutoModelForCausalLM


class ReferenceModel:
    """A model on the CPU, and at most one adapter on it."""

    def __init__(self, model: Any, has_adapter: bool) -> None:
        self._model = model.eval()
        self._has_adapter = has_adapter

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int], count: int, *, with_adapter: bool) -> torch.Tensor:
        """float32 [count, vocab_size]: before each of the last `count` tokens of one sequence alone."""
        is_off = self._has_adapter and not with_adapter
        ids = torch.tensor([list(token_ids)])
        with self._model.disable_adapter() if is_off else nullcontext():
            logits: torch.Tensor = self._model(ids, logits_to_keep=count + 1).logits[0, :-1]
        return logits.float()


def load(source: Path, adapter: Path | None, dtype: str, stored_dtype: str) -> ReferenceModel:
    """A folder or a GGUF file, its weights rounded to what the checked model stores, then computed in
    `dtype`."""
    exact = {"dtype": torch.float32}
    if source.suffix == ".gguf":
        model = AutoModelForCausalLM.from_pretrained(
            str(source.parent), gguf_file=source.name, **exact
        )
    else:
        model = AutoModelForCausalLM.from_pretrained(source, **exact)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(getattr(torch, stored_dtype)).to(getattr(torch, dtype))
    if adapter is None:
        return ReferenceModel(model, has_adapter=False)
    with warnings.catch_warnings():
        # PEFT's talk of its own internals; what it thinks of the adapter, the engine has judged
        warnings.simplefilter("ignore")
        wrapped = peft.PeftModel.from_pretrained(model, adapter, torch_device="cpu")
    return ReferenceModel(wrapped.to(getattr(torch, dtype)), has_adapter=True)
