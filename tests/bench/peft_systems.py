"""What one does without a serving engine: transformers and PEFT, in one process."""

import time
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM
from workload import Request, Timeline

PAD_ID = 2
BATCH = 16


class _Peft:
    def __init__(self, model_folder: Path, adapters: Path) -> None:
        base = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16)
        first, *others = sorted(p.name for p in adapters.iterdir())
        self.model = PeftModel.from_pretrained(base, adapters / first, adapter_name=first)
        for name in others:
            self.model.load_adapter(str(adapters / name), adapter_name=name)
        self.model.to(torch.bfloat16).eval()

    def generate(
        self, prompts: list[list[int]], num_tokens: int, adapter_names: list[str] | None = None
    ) -> None:
        length = max(map(len, prompts))
        padding = [length - len(ids) for ids in prompts]
        options = {} if adapter_names is None else {"adapter_names": adapter_names}
        with torch.inference_mode():
            out = self.model.generate(
                input_ids=torch.tensor(
                    [[PAD_ID] * n + ids for n, ids in zip(padding, prompts, strict=True)]
                ),
                attention_mask=torch.tensor([[0] * n + [1] * (length - n) for n in padding]),
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
                do_sample=False,
                pad_token_id=PAD_ID,
                eos_token_id=None,
                **options,
            )
        assert out.shape[1] == length + num_tokens

    def close(self) -> None:
        del self.model


class PeftOneAtATime(_Peft):
    """Each request alone, with set_adapter before it."""

    name = "peft-one-at-a-time"

    def serve(self, requests: list[Request]) -> list[Timeline]:
        started, served = time.perf_counter(), []
        for request in requests:
            if request.adapter is None:
                with self.model.disable_adapter():
                    self.generate([request.prompt_ids], request.max_tokens)
            else:
                self.model.set_adapter(request.adapter)
                self.generate([request.prompt_ids], request.max_tokens)
            served.append(Timeline(request.max_tokens, None, time.perf_counter() - started))
        return served


class PeftMixedBatch(_Peft):
    """Static batches in order of arrival; each runs to its longest output, only what was asked counts."""

    name = "peft-mixed-batch"

    def serve(self, requests: list[Request]) -> list[Timeline]:
        started, served = time.perf_counter(), []
        for start in range(0, len(requests), BATCH):
            batch = requests[start : start + BATCH]
            self.generate(
                [r.prompt_ids for r in batch],
                max(r.max_tokens for r in batch),
                [r.adapter or "__base__" for r in batch],
            )
            end_s = time.perf_counter() - started
            served += [Timeline(r.max_tokens, None, end_s) for r in batch]
        return served
