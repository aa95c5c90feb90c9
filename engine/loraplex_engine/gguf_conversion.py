"""A GGUF file becomes a bf16 Hugging Face folder: `python -m loraplex_engine.gguf_conversion FILE FOLDER`.

A process of its own, since it loads torch and transformers and holds the weights in float32.
"""

import json
import sys
from pathlib import Path

import torch
from gguf import GGUFReader
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

# What transformers notes about the file it read; none of it is true of the folder it becomes.
READER_NOTES = (
    "quantization_config",
    "_name_or_path",
    "_model_name_or_path",
    "dtype",
    "torch_dtype",
    "architectures",
)


def convert(source: Path, target: Path) -> None:
    """Write weights, config and tokenizer of a GGUF file to `target`."""
    convert_weights(source, target)
    convert_tokenizer(source, target)


def convert_weights(source: Path, target: Path) -> None:
    read = AutoModelForCausalLM.from_pretrained(
        str(source.parent), gguf_file=source.name, dtype=torch.float32
    )
    settings = {k: v for k, v in read.config.to_dict().items() if k not in READER_NOTES}
    # GGUF keeps it in float32, where 1e-5 reads 9.99999974e-06
    settings["rms_norm_eps"] = float(f"{read.config.rms_norm_eps:.6g}")

    # A model that came from GGUF cannot be saved, although its weights are plain tensors by then.
    with torch.device("meta"):
        model = type(read)(type(read.config)(**settings))
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in read.state_dict().items()}
    outcome = model.load_state_dict(weights, strict=False, assign=True)
    tied = {"lm_head.weight"} if read.config.tie_word_embeddings else set()
    lost = set(outcome.missing_keys) - tied
    if lost or outcome.unexpected_keys:
        raise ValueError(f"{source.name}: missing {lost}, unexpected {outcome.unexpected_keys}")
    model.tie_weights()
    model.config.dtype = torch.bfloat16
    model.save_pretrained(target)


def convert_tokenizer(source: Path, target: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    # GGUF only names the pre-tokenizer, and transformers takes GPT-2's for all; SmolLM splits digits.
    if GGUFReader(source).fields["tokenizer.ggml.pre"].contents() == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
            [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
        )
    tokenizer.save_pretrained(target)
    # transformers 5 writes a class name that 4 does not know; both know this one
    config = target / "tokenizer_config.json"
    settings = json.loads(config.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    config.write_text(json.dumps(settings, indent=2))


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
