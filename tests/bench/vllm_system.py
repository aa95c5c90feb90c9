"""vLLM's own server on the CPU: with the adapters loaded, or without LoRA, which it then compiles."""

from pathlib import Path

from environments import CACHE, python_of, vllm_preloads, without_threads
from http_system import Body, HttpServer, free_port
from workload import Request

BASE = "base"
MAX_MODEL_LEN, MAX_NUM_SEQS, MAX_LORA_RANK = 2048, 64, 16
KV_GIB = 4


class VllmServer(HttpServer):
    """All adapters in slots of their own, each core with a thread of its worker."""

    name = "vllm"

    def __init__(self, model_folder: Path, adapters: Path, threads: int) -> None:
        port, binaries = free_port(), python_of("vllm").parent
        command: list[str | Path] = [
            binaries / "vllm", "serve", model_folder, "--served-model-name", BASE,
            "--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16",
            "--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(MAX_NUM_SEQS),
            "--enable-prompt-tokens-details",
        ]  # fmt: skip
        super().__init__(
            [*command, *self._lora_options(adapters)],
            environment(binaries, threads),
            port=port,
            log=CACHE / f"{self.name}.log",
        )

    def body(self, request: Request) -> Body:
        return {
            "model": request.adapter or BASE,
            "prompt": request.prompt_ids,
            "max_tokens": request.max_tokens,
            "min_tokens": request.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }

    def _lora_options(self, adapters: Path) -> list[str]:
        folders = sorted(adapters.iterdir())
        count = str(len(folders))
        return ["--enable-lora", "--max-loras", count, "--max-cpu-loras", count,
                "--max-lora-rank", str(MAX_LORA_RANK),
                "--lora-modules", *(f"{folder.name}={folder}" for folder in folders)]  # fmt: skip


class VllmBaseServer(VllmServer):
    """For the base model alone."""

    name = "vllm-base"

    def _lora_options(self, adapters: Path) -> list[str]:
        return []


def environment(binaries: Path, threads: int) -> dict[str, str]:
    mine = without_threads()
    return mine | {
        "PATH": f"{binaries}:{mine['PATH']}",
        "LD_PRELOAD": ":".join(map(str, vllm_preloads())),
        "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}" if threads > 1 else "0",
        "VLLM_CACHE_ROOT": str(CACHE / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(CACHE / "inductor"),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
