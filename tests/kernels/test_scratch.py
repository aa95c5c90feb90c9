"""What a kernel writes its intermediate results into is its own until it ends."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from loraplex_kernels._numba import PACKAGE

ROOT = Path(__file__).parents[2]
MAKERS = {"empty", "zeros"}


def called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def freed_early(source: str) -> set[tuple[str, str]]:
    """(function, array) where an array that it makes is known by its address alone at the end."""
    found = set()
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        nodes = list(ast.walk(function))
        made = {
            target.id
            for node in nodes
            if isinstance(node, ast.Assign) and called(node.value) in MAKERS
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        taken = {
            argument.id
            for node in nodes
            if called(node) == "address_of" and isinstance(node, ast.Call)
            for argument in node.args
            if isinstance(argument, ast.Name)
        }
        last = ast.walk(function.body[-1])
        kept = {
            name.id
            for call in last
            if called(call) == "keep"
            for name in ast.walk(call)
            if isinstance(name, ast.Name)
        }
        found |= {(function.name, name) for name in (made & taken) - kept}
    return found


def test_an_array_known_by_its_address_is_kept_to_the_end() -> None:
    """Numba frees an array after the last use of its name, and another thread may have it then."""
    for path in PACKAGE.rglob("_*.py"):
        assert freed_early(path.read_text()) == set(), path


def test_the_rule_finds_what_it_is_for() -> None:
    body = "    s = np.empty(4)\n    at = address_of(s)\n    work(at)\n"
    assert freed_early(f"def f():\n{body}") == {("f", "s")}
    assert freed_early(f"def f():\n{body}    keep(s)\n") == set()
    assert freed_early("def f(s):\n    work(address_of(s))\n") == set()


@pytest.mark.parametrize("file", ["companies", "lora", "linear", "elementwise"])
@pytest.mark.slow
def test_kernels_work_where_freed_memory_is_overwritten(file: str) -> None:
    """One heap for all threads, and what is freed in it changes at once."""
    test = f"tests/kernels/test_{file}.py"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
    environment = os.environ | {"MALLOC_ARENA_MAX": "1", "MALLOC_PERTURB_": "128"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
