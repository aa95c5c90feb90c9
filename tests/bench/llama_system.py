"""llama.cpp's own server, with the adapters as GGUF; it batches requests that name the same ones."""

from pathlib import Path

import httpx2
from environments import CACHE, llama_cpp, python_of, run, without_threads
from http_system import Body, HttpServer, free_port
from workload import Request

CONTEXT_TOKENS, SLOTS = 32768, 16  # of all slots together


class LlamaServer(HttpServer):
    """The base model in bfloat16, the adapters in float16, as its converters write them."""

    name = "llama.cpp"

    def __init__(self, model_folder: Path, adapters: Path, threads: int) -> None:
        files = converted(model_folder, adapters)
        port = free_port()
        command: list[str | Path] = [
            llama_cpp() / "build" / "bin" / "llama-server", "-m", files.pop(0),
            "--host", "127.0.0.1", "--port", str(port), "-t", str(threads), "-tb", str(threads),
            "-c", str(CONTEXT_TOKENS), "-np", str(SLOTS), "--no-webui", "--lora-init-without-apply",
        ]  # fmt: skip
        for file in files:
            command += ["--lora", file]
        super().__init__(command, without_threads(), port=port, log=CACHE / "llama.cpp.log")
        loaded = httpx2.get(f"{self.url}/lora-adapters").json()
        self.ids = {Path(adapter["path"]).stem: adapter["id"] for adapter in loaded}

    def body(self, request: Request) -> Body:
        # An empty list would mean the server's own, which is all adapters at once.
        lora = {"id": 0, "scale": 0.0}
        if request.adapter is not None:
            lora = {"id": self.ids[request.adapter], "scale": 1.0}
        return {
            "prompt": request.prompt_ids,
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": True,
            "lora": [lora],
        }

    def greedy(self, request: Request) -> list[int]:
        asked = self.body(request) | {"n_predict": request.max_tokens, "return_tokens": True}
        return [int(token) for token in self.ask("/completion", asked)["tokens"]]


def converted(model_folder: Path, adapters: Path) -> list[Path]:
    """The base model's file, then each adapter's, written where they are missing."""
    source, folder = llama_cpp(), CACHE / "gguf" / model_folder.name
    folder.mkdir(parents=True, exist_ok=True)
    base = folder / "base.gguf"
    if not base.exists():
        _convert("convert_hf_to_gguf.py", source, base, "bf16", model_folder)
    files = [base]
    for adapter in sorted(adapters.iterdir()):
        files.append(folder / f"{adapter.name}.gguf")
        if not files[-1].exists():
            _convert(
                "convert_lora_to_gguf.py", source, files[-1], "f16", adapter, "--base", model_folder
            )
    return files


def _convert(script: str, source: Path, file: Path, dtype: str, *inputs: str | Path) -> None:
    written = file.with_suffix(".part")
    run([python_of("peft"), source / script, *inputs, "--outtype", dtype, "--outfile", written],
        without_threads())  # fmt: skip
    written.rename(file)
