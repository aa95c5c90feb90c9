"""Greedy tokens of transformers and PEFT in float32: what every server has to say, but for rounding.

The first requests of w1, each with its own adapter, with none and with one of either rank. Run in PEFT's
environment: python golden_reference.py MODEL ADAPTERS FILE
"""

import json
import sys
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, PreTrainedModel
from workload import load

REQUESTS, TOKENS = 4, 32
ALSO_WITH = (None, "a00", "a01")


def greedy(model: PeftModel, prompt_ids: list[int]) -> tuple[list[int], list[float]]:
    """Tokens, and by how much the first one's logit is above the second one's."""
    tokens: list[int] = []
    margins: list[float] = []
    ids, cache = torch.tensor([prompt_ids]), None
    with torch.inference_mode():
        for _ in range(TOKENS):
            out = model(input_ids=ids, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            values, best = out.logits[0, -1].float().topk(2)
            tokens.append(int(best[0]))
            margins.append(round(float(values[0] - values[1]), 4))
            ids = best[:1].view(1, 1)
    return tokens, margins


def main() -> None:
    model_folder, adapters, file = map(Path, sys.argv[1:])
    requests = load("w1", REQUESTS)
    asked = [(r, a) for r in requests for a in dict.fromkeys([r.adapter, *ALSO_WITH])]
    base: PreTrainedModel = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    first, *others = sorted({name for _, name in asked if name is not None})
    model = PeftModel.from_pretrained(base, adapters / first, adapter_name=first)
    for name in others:
        model.load_adapter(str(adapters / name), adapter_name=name)
    model.eval()
    rows = []
    for request, name in asked:
        if name is None:
            with model.disable_adapter():
                tokens, margins = greedy(model, request.prompt_ids)
        else:
            model.set_adapter(name)
            tokens, margins = greedy(model, request.prompt_ids)
        row = {"adapter": name, "prompt_ids": request.prompt_ids, "tokens": tokens}
        rows.append(row | {"margins": margins})
    written = file.with_suffix(".part")
    written.write_text(json.dumps(rows))
    written.rename(file)


if __name__ == "__main__":
    main()
