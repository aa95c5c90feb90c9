import subprocess
import sys

MODULES = [
    "added_tokens",
    "errors",
    "extended_tokenizer",
    "folder",
    "header",
    "layout",
    "manifest",
    "peft_config",
    "registry",
    "report",
    "rows",
    "slots",
    "store",
]


def test_what_the_platform_uses_loads_no_torch() -> None:
    """The API process judges and stores adapters; it must not pay for torch, nor need CUDA."""
    imports = ", ".join(f"loraplex_adapters.{module}" for module in MODULES)
    code = (
        f"import sys, {imports}; print(sorted({{'torch', 'numba', 'triton'}} & sys.modules.keys()))"
    )
    environment = {"PYTHONPATH": ":".join(p for p in sys.path if p)}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
