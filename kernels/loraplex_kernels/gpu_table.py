"""The table of compiled kernels in deploy/docs/gpu-kernels.md.

python -m loraplex_kernels.gpu_table < reports > deploy/docs/gpu-kernels.md, where `reports` are the lines
that loraplex_kernels.ahead_of_time prints, of one or more versions of Triton.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from loraplex_kernels.gpu_configs import ARCHITECTURES, CHUNK_ROWS, RANK_CLASSES
from loraplex_kernels.work import LAYER_8B, example_runs, expand_work, shrink_work

Reported = Mapping[str, Any]  # a Report as JSON has it

TEXT = """# The GPU kernels as compiled

Every configuration of `gpu_configs.py`, compiled without a GPU, by `kernels/loraplex_kernels/gpu_table.py`:

    {command}

Registers a thread, KiB of shared memory a block, and the share of a multiprocessor's 64 warps that fit it at
once (occupancy). No kernel has a stack or spills, and those with products use the tensor cores: the slow
tests compile all of them with both versions and compare what they find with this page.

Intensity: operations a byte that memory must move, for a fused qkv of 8B with sixteen streams of sixteen
adapters (`few`) or one prompt of 512 tokens (`many`), 64 streams of 1,024 tokens (decode), or one prompt of
1,024 (prefill). An H100 has about 300 operations in bfloat16 for each byte: what is far below that is bound
by memory, whatever its occupancy.

The kernels of LoRA are the same for every projection: how many slices it has, and how wide they are, is
said at the launch. Only their intensity differs, here shrink and expand:

"""
COMMAND = "python -m loraplex_kernels.ahead_of_time | python -m loraplex_kernels.gpu_table"


def cell(report: Reported) -> str:
    """What one architecture makes of a kernel."""
    parts = [f"{report['registers']}", f"{report['shared_bytes'] / 1024:.1f}"]
    parts.append(f"{report['occupancy']:.0%}")
    if report["tensor_memory_columns"]:
        parts.append(f"{report['tensor_memory_columns']} tmem")
    return " · ".join(parts)


def page(reports: Iterable[Reported]) -> str:
    """One table for each version of Triton, the newest first."""
    versions: dict[str, dict[str, dict[int, Reported]]] = {}
    for report in reports:
        kernels = versions.setdefault(report["triton"], {})
        kernels.setdefault(report["name"], {})[report["architecture"]] = report
    parts = [TEXT.format(command=COMMAND) + "\n".join(projections())]
    for version in sorted(versions, reverse=True):
        columns = " | ".join(f"sm_{architecture}" for architecture in ARCHITECTURES)
        parts.append(f"\n## Triton {version}\n")
        parts.append(f"| kernel | intensity | warps | {columns} |")
        parts.append("|---" * (3 + len(ARCHITECTURES)) + "|")
        parts += [row(name, found) for name, found in versions[version].items()]
    return "\n".join(parts) + "\n"


def projections() -> Iterator[str]:
    """The intensities of LoRA on the projections of a layer."""
    yield f"| LoRA | {' | '.join(LAYER_8B)} |"
    yield "|---" * (1 + len(LAYER_8B)) + "|"
    for tokens in CHUNK_ROWS:
        for rank in RANK_CLASSES:
            runs = example_runs(tokens, rank)
            cells = [
                f"{shrink_work(runs, in_features, len(widths)).intensity:.1f}"
                f" · {expand_work(runs, widths).intensity:.1f}"
                for in_features, widths in LAYER_8B.values()
            ]
            yield f"| r{rank} {tokens} | {' | '.join(cells)} |"


def row(name: str, found: Mapping[int, Reported]) -> str:
    """One line of a table: a kernel on every architecture."""
    first = found[ARCHITECTURES[0]]
    cells = " | ".join(cell(found[architecture]) for architecture in ARCHITECTURES)
    return f"| {name} | {first['intensity']} | {first['num_warps']} | {cells} |"


if __name__ == "__main__":
    sys.stdout.write(page(json.loads(line) for line in sys.stdin))
