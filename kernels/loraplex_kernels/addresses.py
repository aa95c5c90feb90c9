"""Whether a compiled kernel can reach beyond what 32 bits count: read from Triton's own representation."""

import re
from typing import NamedTuple

DEFINITION = re.compile(r"^\s*(%\w+) = ([\w.]+) ([^:]*): (.*?)(?: loc\(.*)?$", re.MULTILINE)
VALUE = re.compile(r"%\w+(?:#\d+)?")
MOVED = {"tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape"}
SUMS = {"arith.addi", "arith.subi"}
PRODUCT = "arith.muli"
BOUNDED = {"arith.constant", "tt.make_range"}  # by a tile


class Made(NamedTuple):
    """How a value came to be."""

    operation: str
    operands: tuple[str, ...]
    is_narrow: bool  # of 32 bits


def narrow_products(ttir: str) -> int:
    """Products of 32 bits that an address has in it, but for those within a tile.

    A place in a slab or a pool is the product of a row, which a table or a program's number gives, and the
    size of a row: in 32 bits it overflows as soon as there are 2**31 elements. What is made wider after its
    product is a count, of tokens or keys, and not looked into.
    """
    values = {
        name: Made(operation, tuple(VALUE.findall(operands)), types.endswith(("i32", "i32>")))
        for name, operation, operands, types in DEFINITION.findall(ttir)
    }
    todo = [made.operands[1] for made in values.values() if made.operation == "tt.addptr"]
    assert todo, "a kernel reads and writes memory"
    seen: set[str] = set()
    found = 0
    while todo:
        name = todo.pop()
        made = values.get(name)
        if made is None or name in seen:
            continue
        seen.add(name)
        if made.operation == PRODUCT and made.is_narrow and not _is_bounded(name, values):
            found += 1
        if made.operation in {PRODUCT, *SUMS, *MOVED}:
            todo += made.operands
    return found


def _is_bounded(name: str, values: dict[str, Made]) -> bool:
    """Whether a value is made of nothing but constants and positions in a tile."""
    made = values.get(name)
    if made is None:
        return False
    if made.operation in BOUNDED:
        return True
    passes_on = made.operation in {PRODUCT, *SUMS, *MOVED}
    return passes_on and all(_is_bounded(operand, values) for operand in made.operands)
