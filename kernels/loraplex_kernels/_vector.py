"""Sixteen float32 side by side as one Numba value, so that a kernel's vectors do not depend on what
the compiler proves about its loops. LLVM lowers them to whatever registers the machine has."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, overload, register_model

from loraplex_kernels._numba import BF16, piece

LANES = 16
FLOATS = ir.VectorType(ir.FloatType(), LANES)
WORDS = ir.VectorType(ir.IntType(32), LANES)
HALVES = ir.VectorType(ir.IntType(16), LANES)
BYTES = ir.VectorType(ir.IntType(8), LANES)


class Vector(types.Type):
    def __init__(self) -> None:
        super().__init__("float32x16")


vector = Vector()


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, FLOATS)


Build = Callable[..., Any]  # (builder, *values) -> value


def _words(value: int) -> ir.Constant:
    return ir.Constant(WORDS, [value] * LANES)


def _make(signature: Any, build: Build) -> Any:
    """An operation of 1 to 4 arguments from what builds its code."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        made = build(builder, *arguments)
        return context.get_dummy_value() if made is None else made

    def one(typingctx: Any, a: Any) -> Any:
        return signature, codegen

    def two(typingctx: Any, a: Any, b: Any) -> Any:
        return signature, codegen

    def three(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
        return signature, codegen

    def four(typingctx: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        return signature, codegen

    return intrinsic((one, two, three, four)[len(signature.args) - 1])


def _called(name: str) -> Build:
    def build(builder: Any, *values: Any) -> Any:
        kind = ir.FunctionType(FLOATS, [FLOATS] * len(values))
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values)

    return build


def _load(builder: Any, address: Any) -> Any:
    return builder.load(builder.inttoptr(address, FLOATS.as_pointer()), align=4)


def _store(builder: Any, address: Any, value: Any) -> None:
    builder.store(value, builder.inttoptr(address, FLOATS.as_pointer()), align=4)


def _load_bf16(builder: Any, address: Any) -> Any:
    halves = builder.load(builder.inttoptr(address, HALVES.as_pointer()), align=2)
    return builder.bitcast(builder.shl(builder.zext(halves, WORDS), _words(16)), FLOATS)


def _load_int8(builder: Any, address: Any) -> Any:
    bytes_ = builder.load(builder.inttoptr(address, BYTES.as_pointer()), align=1)
    return builder.sitofp(builder.sext(bytes_, WORDS), FLOATS)


def _rounded(builder: Any, value: Any) -> Any:
    """The upper 16 bits, to the nearest, ties to even; a NaN stays one (the quiet one)."""
    bits = builder.bitcast(value, WORDS)
    odd = builder.and_(builder.lshr(bits, _words(16)), _words(1))
    up = builder.lshr(builder.add(bits, builder.add(odd, _words(0x7FFF))), _words(16))
    return builder.select(builder.fcmp_unordered("uno", value, value), _words(0x7FC0), up)


def _store_bf16(builder: Any, address: Any, value: Any) -> None:
    halves = builder.trunc(_rounded(builder, value), HALVES)
    builder.store(halves, builder.inttoptr(address, HALVES.as_pointer()), align=2)


def _store_pairs(builder: Any, address: Any, first: Any, second: Any) -> None:
    """[16, 2] bfloat16, exact if both are: a lane of the first beside the same lane of the second."""
    low = builder.lshr(builder.bitcast(first, WORDS), _words(16))
    high = builder.and_(builder.bitcast(second, WORDS), _words(0xFFFF0000))
    builder.store(builder.or_(low, high), builder.inttoptr(address, WORDS.as_pointer()), align=4)


def _as_bf16(builder: Any, value: Any) -> Any:
    return builder.bitcast(builder.shl(_rounded(builder, value), _words(16)), FLOATS)


def _interleave(builder: Any, first: Any, second: Any, address: Any, num_bytes: Any) -> None:
    """32 elements of two rows of bfloat16, pair by pair: of each eight the first four pairs go to the
    address, the others num_bytes further. What processors do in two instructions; `_in_order` undoes it."""
    long = ir.VectorType(ir.IntType(16), 2 * LANES)
    rows = [builder.load(builder.inttoptr(r, long.as_pointer()), align=2) for r in (first, second)]
    for at, place in ((0, address), (4, builder.add(address, num_bytes))):
        mask = [
            8 * eight + at + i + 32 * row for eight in range(4) for i in range(4) for row in (0, 1)
        ]
        order = ir.Constant(ir.VectorType(ir.IntType(32), 2 * LANES), mask)
        pairs = builder.shuffle_vector(*rows, order)
        builder.store(pairs, builder.inttoptr(place, long.as_pointer()), align=4)


def _in_order(half: int) -> Build:
    """Of the columns that `_interleave` made: elements 0-15 of a row, or 16-31."""
    mask = [
        4 * (2 * half + eight) + i + LANES * four
        for eight in (0, 1)
        for four in (0, 1)
        for i in range(4)
    ]

    def build(builder: Any, first: Any, second: Any) -> Any:
        return builder.shuffle_vector(first, second, ir.Constant(WORDS, mask))

    return build


def _from(builder: Any, first: Any) -> Any:
    """first, first + 1, ..., as far as float32 counts."""
    return builder.fadd(
        _splat(builder, first), ir.Constant(FLOATS, [float(i) for i in range(LANES)])
    )


def _splat(builder: Any, value: Any) -> Any:
    place = builder.insert_element(ir.Constant(FLOATS, ir.Undefined), value, ir.IntType(32)(0))
    return builder.shuffle_vector(place, ir.Constant(FLOATS, ir.Undefined), _words(0))


def _power_of_two(builder: Any, value: Any) -> Any:
    whole = builder.add(builder.fptosi(value, WORDS), _words(127))
    return builder.bitcast(builder.shl(whole, _words(23)), FLOATS)


def _any_greater(builder: Any, a: Any, b: Any) -> Any:
    bits = builder.bitcast(builder.fcmp_ordered(">", a, b), ir.IntType(16))
    return builder.icmp_unsigned("!=", bits, ir.IntType(16)(0))


def _if_at_most(builder: Any, a: Any, b: Any, then: Any, otherwise: Any) -> Any:
    return builder.select(builder.fcmp_ordered("<=", a, b), then, otherwise)


def _of_all_lanes(join: Build) -> Build:
    """All lanes joined, halves first: always in the same order."""

    def build(builder: Any, value: Any) -> Any:
        for width in (8, 4, 2, 1):
            order = [(lane + width) % LANES for lane in range(LANES)]
            moved = builder.shuffle_vector(value, value, ir.Constant(WORDS, order))
            value = join(builder, value, moved)
        return builder.extract_element(value, ir.IntType(32)(0))

    return build


def _transpose(
    builder: Any, source: Any, source_bytes: Any, target: Any, target_bytes: Any
) -> None:
    """16 by 16 words: rows of the source become columns of the target."""

    def place(base: Any, row_bytes: Any, row: int) -> Any:
        offset = builder.mul(row_bytes, ir.IntType(64)(row))
        return builder.inttoptr(builder.add(base, offset), WORDS.as_pointer())

    rows = [builder.load(place(source, source_bytes, row), align=4) for row in range(LANES)]
    for width in (8, 4, 2, 1):
        upper = [j if not j & width else LANES + j - width for j in range(LANES)]
        lower = [j + width if not j & width else LANES + j for j in range(LANES)]
        for i in range(LANES):
            if not i & width:
                a, b = rows[i], rows[i | width]
                rows[i] = builder.shuffle_vector(a, b, ir.Constant(WORDS, upper))
                rows[i | width] = builder.shuffle_vector(a, b, ir.Constant(WORDS, lower))
    for row in range(LANES):
        builder.store(rows[row], place(target, target_bytes, row), align=4)


i64, f32 = types.int64, types.float32
load = _make(vector(i64), _load)
store = _make(types.none(i64, vector), _store)
load_bf16 = _make(vector(i64), _load_bf16)
load_int8 = _make(vector(i64), _load_int8)
store_bf16 = _make(types.none(i64, vector), _store_bf16)
store_pairs = _make(types.none(i64, vector, vector), _store_pairs)
interleave_bf16 = _make(types.none(i64, i64, i64, i64), _interleave)
first_in_order, second_in_order = (_make(vector(vector, vector), _in_order(i)) for i in (0, 1))
count_from = _make(vector(f32), _from)
as_bf16 = _make(vector(vector), _as_bf16)
splat = _make(vector(f32), _splat)
sum_lanes = _make(f32(vector), _of_all_lanes(lambda builder, a, b: builder.fadd(a, b)))
largest_lane = _make(f32(vector), _of_all_lanes(_called("llvm.maxnum.v16f32")))
fma = _make(vector(vector, vector, vector), _called("llvm.fma.v16f32"))
largest = _make(vector(vector, vector), _called("llvm.maxnum.v16f32"))
absolute = _make(vector(vector), _called("llvm.fabs.v16f32"))
nearest = _make(vector(vector), _called("llvm.rint.v16f32"))
power_of_two = _make(vector(vector), _power_of_two)
any_greater = _make(types.boolean(vector, vector), _any_greater)
if_at_most = _make(vector(vector, vector, vector, vector), _if_at_most)
transpose_words = _make(types.none(i64, i64, i64, i64), _transpose)

OPERATIONS = {operator.add: "fadd", operator.sub: "fsub", operator.mul: "fmul"}
OPERATIONS[operator.truediv] = "fdiv"


def _overload(function: Any, name: str) -> None:
    compute = _make(vector(vector, vector), lambda builder, a, b: getattr(builder, name)(a, b))

    def typed(a, b):
        if isinstance(a, Vector) and isinstance(b, Vector):
            return lambda a, b: compute(a, b)
        return None

    overload(function)(typed)


for _function, _name in OPERATIONS.items():
    _overload(_function, _name)


@piece
def load_as(address, dtype):
    """16 elements of a type known by its code."""
    if dtype == BF16:
        return load_bf16(address)
    return load(address)


@piece
def store_as(address, dtype, value):
    if dtype == BF16:
        store_bf16(address, value)
    else:
        store(address, value)


@piece
def exp_vector(x):
    """e**x of each lane for x <= 0, to 2 ulp; what is below -87 counts as -87."""
    x = largest(x, splat(np.float32(-87.0)))
    n = nearest(x * splat(np.float32(1.44269504)))
    f = fma(n, splat(np.float32(-0.693359375)), x)
    f = fma(n, splat(np.float32(2.12194440e-4)), f)
    p = fma(splat(np.float32(1.9875691500e-4)), f, splat(np.float32(1.3981999507e-3)))
    p = fma(p, f, splat(np.float32(8.3334519073e-3)))
    p = fma(p, f, splat(np.float32(4.1665795894e-2)))
    p = fma(p, f, splat(np.float32(1.6666665459e-1)))
    p = fma(p, f, splat(np.float32(5.0000001201e-1)))
    p = fma(p, f * f, f + splat(np.float32(1.0)))
    return p * power_of_two(n)
