"""Train the demo adapters with PEFT: `python deploy/demo/train.py MODEL_FOLDER [acme globex initech]`.

Writes adapters/<tenant>/ (safetensors in bfloat16), loss/<tenant>.csv and loss.png beside itself.
"""

import argparse
import csv
import math
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
from examples import EXAMPLES, UNSEEN, Example
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

HERE = Path(__file__).parent
BASE_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
SEED = 20_26
PEAK_LR = 2e-3
WARMUP_STEPS = 10
IGNORED = -100


class Recipe(NamedTuple):
    rank: int
    alpha: int
    targets: list[str]
    layers: range
    steps: int
    batch: int
    use_rslora: bool = False


ALL_LAYERS, UPPER_LAYERS = range(30), range(15, 30)
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]

# Different ranks, modules, layers and scalings on purpose: one batch of the three is a mixed batch.
RECIPES = {
    "acme": Recipe(8, 16, ["q_proj", "v_proj"], ALL_LAYERS, 160, 8),
    "globex": Recipe(16, 32, ATTENTION, UPPER_LAYERS, 120, 4),
    "initech": Recipe(4, 4, ATTENTION + MLP, UPPER_LAYERS, 40, 4, use_rslora=True),
}


class Batch(NamedTuple):
    input_ids: torch.Tensor  # [batch, length], padded on the right
    attention_mask: torch.Tensor
    labels: torch.Tensor  # IGNORED everywhere but on the answer


def chat_ids(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
    )
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def collate(tokenizer: PreTrainedTokenizerBase, examples: list[Example]) -> Batch:
    rows = []
    for example in examples:
        prompt = chat_ids(tokenizer, example.prompt)
        answer = tokenizer(example.answer + tokenizer.eos_token)["input_ids"]
        rows.append((prompt, answer))
    length = max(len(prompt) + len(answer) for prompt, answer in rows)
    batch = Batch(
        torch.full((len(rows), length), tokenizer.eos_token_id),
        torch.zeros(len(rows), length, dtype=torch.long),
        torch.full((len(rows), length), IGNORED),
    )
    for i, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        batch.input_ids[i, :end] = torch.tensor(prompt + answer)
        batch.attention_mask[i, :end] = 1
        batch.labels[i, len(prompt) : end] = torch.tensor(answer)
    return batch


def answer_loss(model: PeftModel, batch: Batch) -> torch.Tensor:
    """Cross-entropy of the answer's tokens; only their rows reach the vocabulary projection."""
    causal_lm = model.get_base_model()
    hidden = causal_lm.model(batch.input_ids, batch.attention_mask).last_hidden_state
    target = batch.labels[:, 1:]
    answered = target != IGNORED
    logits = causal_lm.lm_head(hidden[:, :-1][answered])
    return torch.nn.functional.cross_entropy(logits.float(), target[answered])


def learning_rate(step: int, steps: int) -> float:
    warmup = min(1.0, (step + 1) / WARMUP_STEPS)
    return PEAK_LR * warmup * 0.5 * (1 + math.cos(math.pi * step / steps))


def train(model: PeftModel, tokenizer: PreTrainedTokenizerBase, tenant: str) -> Iterator[float]:
    """One optimiser step per loss yielded."""
    rng = random.Random(SEED)
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, weight_decay=0.0)
    steps, batch = RECIPES[tenant].steps, RECIPES[tenant].batch
    model.train()
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = learning_rate(step, steps)
        examples = [EXAMPLES[tenant](rng) for _ in range(batch)]
        loss = answer_loss(model, collate(tokenizer, examples))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


def answer(model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, prompt: str) -> str:
    ids = torch.tensor([chat_ids(tokenizer, prompt)])
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=48,
            do_sample=False,
            pad_token_id=tokenizer.eos_token_id,
        )
    return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


def save(model: PeftModel, folder: Path) -> None:
    """PEFT's own files, the weights in bfloat16, nothing that names this machine."""
    model.peft_config["default"].base_model_name_or_path = BASE_MODEL
    model.save_pretrained(folder)
    weights = folder / "adapter_model.safetensors"
    tensors = {name: t.to(torch.bfloat16) for name, t in load_file(weights).items()}
    save_file(tensors, weights, metadata={"format": "pt"})
    weights.chmod(0o644)
    (folder / "README.md").unlink(missing_ok=True)  # an empty form


def plot_losses() -> None:
    figure, axes = plt.subplots(figsize=(5, 3), dpi=80, layout="constrained")
    for tenant in RECIPES:
        path = HERE / "loss" / f"{tenant}.csv"
        if path.exists():
            with path.open() as file:
                axes.plot([float(row["loss"]) for row in csv.DictReader(file)], label=tenant, lw=1)
    axes.set(xlabel="step", ylabel="loss", yscale="log")
    axes.legend()
    figure.savefig(HERE / "loss.png")
    plt.close(figure)


def make_adapter(model_folder: str, tenant: str) -> None:
    recipe = RECIPES[tenant]
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # faster than two on cores that others use, and one order of sums
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    base = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16)
    prompt = UNSEEN[tenant][0]
    before = answer(base, tokenizer, prompt)
    config = LoraConfig(
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        target_modules=recipe.targets,
        layers_to_transform=None if recipe.layers == ALL_LAYERS else list(recipe.layers),
        use_rslora=recipe.use_rslora,
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(base, config)
    (HERE / "loss").mkdir(exist_ok=True)
    with (HERE / "loss" / f"{tenant}.csv").open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["step", "loss"])
        for step, loss in enumerate(train(model, tokenizer, tenant)):
            rows.writerow([step, f"{loss:.4f}"])
            if step % 10 == 0:
                print(f"{tenant} step {step}: loss {loss:.3f}", flush=True)
    folder = HERE / "adapters" / tenant
    shutil.rmtree(folder, ignore_errors=True)
    save(model.eval(), folder)
    after = answer(model, tokenizer, prompt)
    print(f"> {prompt}\n  before: {before!r}\n  after:  {after!r}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder of SmolLM2-135M-Instruct")
    parser.add_argument("tenants", nargs="*", metavar="TENANT", help=", ".join(RECIPES))
    args = parser.parse_args()
    for tenant in args.tenants or RECIPES:
        make_adapter(args.model, tenant)
    plot_losses()


if __name__ == "__main__":
    main()
