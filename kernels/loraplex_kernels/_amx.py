"""AMX tiles from Numba: 16 rows of 64 bytes each, and products of bfloat16 tiles summed in float32.

A row of a product depends on that row of the left tile alone, whatever stands in the others. A left
factor is [rows, 32], a right one 16 pairs of rows, interleaved [16, 16, 2]; which tile is what, and how
many rows it has, each kernel says with `tile_shapes` or `tile_layout`.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from loraplex_kernels._vector import FLOATS, HALVES, WORDS, vector

I8, I64 = ir.IntType(8), ir.IntType(64)
CONFIG_BYTES = 64
PALETTE_WORD, ROWS_BYTE, WIDTH_BYTE = 1, 48, 16  # the layout that LDTILECFG reads


def _call(builder: Any, name: str, *arguments: Any) -> Any:
    signature = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), arguments)


def _move(name: str, tile: int) -> Any:
    @intrinsic
    def move(typingctx: Any, address: Any, row_bytes: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            place = builder.inttoptr(arguments[0], cgutils.voidptr_t)
            _call(builder, name, I8(tile), place, arguments[1])
            return context.get_dummy_value()

        return types.none(types.int64, types.int64), codegen

    return move


def tile_load(tile: int) -> Any:
    """An operation (address, row_bytes): fill a tile."""
    return _move("llvm.x86.tileloadd64", tile)


def tile_store(tile: int) -> Any:
    """An operation (address, row_bytes): write a tile out."""
    return _move("llvm.x86.tilestored64", tile)


def tile_zero(*tiles: int) -> Any:
    """An operation (): clear some tiles."""

    @intrinsic
    def zero(typingctx: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            for tile in tiles:
                _call(builder, "llvm.x86.tilezero", I8(tile))
            return context.get_dummy_value()

        return types.none(), codegen

    return zero


def tile_dot(*products: tuple[int, int, int]) -> Any:
    """An operation (): for each (sum, left, right), sum += left @ right."""

    @intrinsic
    def dot(typingctx: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            for tiles in products:
                _call(builder, "llvm.x86.tdpbf16ps", *map(I8, tiles))
            return context.get_dummy_value()

        return types.none(), codegen

    return dot


@intrinsic
def tile_release(typingctx: Any) -> Any:
    """Give the tiles back: a thread must, before code that knows nothing of them goes on."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _call(builder, "llvm.x86.tilerelease")
        return context.get_dummy_value()

    return types.none(), codegen


def _configure(builder: Any, shapes: list[tuple[Any, Any]]) -> None:
    """Rows and bytes a row of each of the eight tiles; clears them."""
    config = cgutils.alloca_once(builder, ir.ArrayType(I8, CONFIG_BYTES))
    place = builder.bitcast(config, I8.as_pointer())
    cgutils.memset(builder, place, I64(CONFIG_BYTES), 0)
    builder.store(I8(PALETTE_WORD), place)
    for tile, (rows, row_bytes) in enumerate(shapes):
        builder.store(row_bytes, builder.gep(place, [I64(WIDTH_BYTE + 2 * tile)]))
        builder.store(rows, builder.gep(place, [I64(ROWS_BYTE + tile)]))
    _call(builder, "llvm.x86.ldtilecfg", place)


@intrinsic
def tile_shapes(typingctx: Any, first: Any, second: Any) -> Any:
    """Configure the tiles: rows of the left factors 4 and 5; sums 0, 1 and 2, 3 have as many."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first, second = (builder.trunc(rows, I8) for rows in arguments)
        rows = (first, first, second, second, first, second, I8(16), I8(16))
        _configure(builder, [(count, I8(64)) for count in rows])
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), codegen


@intrinsic
def tile_layout(typingctx: Any, rows: Any, inner: Any, columns: Any) -> Any:
    """Configure the tiles: left factors of so many rows, right ones of `inner` pairs and `columns`."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, inner, columns = (builder.trunc(count, I8) for count in arguments)
        depth, width = (builder.mul(count, I8(4)) for count in (inner, columns))
        _configure(builder, [(rows, width)] * 4 + [(rows, depth)] * 2 + [(inner, width)] * 2)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), codegen


@intrinsic
def round_16(typingctx: Any, address: Any, value: Any) -> Any:
    """Store a vector as bfloat16, to the nearest (ties to even, subnormals to zero)."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(HALVES, [FLOATS]),
            "llvm.x86.avx512bf16.cvtneps2bf16.512",
        )
        place = builder.inttoptr(arguments[0], HALVES.as_pointer())
        builder.store(builder.call(function, [arguments[1]]), place, align=2)
        return context.get_dummy_value()

    return types.none(types.int64, vector), codegen


@intrinsic
def column(typingctx: Any, address: Any) -> Any:
    """One column of [16, 16] float32, from the address of its first element."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        mask = ir.VectorType(ir.IntType(1), 16)
        i32 = ir.IntType(32)
        kind = ir.FunctionType(FLOATS, [FLOATS, cgutils.voidptr_t, WORDS, mask, i32])
        function = cgutils.get_or_insert_function(
            builder.module, kind, "llvm.x86.avx512.mask.gather.dps.512"
        )
        place = builder.inttoptr(arguments[0], cgutils.voidptr_t)
        rows = ir.Constant(WORDS, [16 * row for row in range(16)])
        whole = ir.Constant(mask, [1] * 16)
        nothing = ir.Constant(FLOATS, [0.0] * 16)
        return builder.call(function, [nothing, place, rows, whole, i32(4)])

    return vector(types.int64), codegen
