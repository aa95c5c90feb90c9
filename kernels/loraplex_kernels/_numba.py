"""How Numba kernels are compiled: once, with one signature, cached by the hash of their sources.

Kernels take addresses and numbers, never arrays: a call costs a microsecond, there is no second
version for read-only or strided arrays, and bfloat16, which Numba does not know, is 16 raw bits.
"""

import ctypes
import hashlib
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.misc.appdirs import AppDirs

from loraplex_kernels.errors import UnsupportedDtype

PACKAGE = Path(__file__).parent
TBB = "libtbb.so.12"


def load_tbb() -> None:
    """Load TBB's library from its wheel, which puts it where no loader looks, if the wheel is there.

    Numba, which then finds it loaded, prefers it to OpenMP. A step of OpenMP waits for each of its
    threads, also for one whose CPU another process has; TBB's threads take the work that nobody began.
    """
    with suppress(metadata.PackageNotFoundError):
        for file in metadata.files("tbb") or ():
            if file.name == TBB:
                ctypes.CDLL(str(file.locate()))


load_tbb()


def source_hash() -> str:
    """Numba only watches the file of the kernel itself; kernels here inline each other's pieces."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(PACKAGE.rglob("_*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


COMPILING = threading.Lock()  # the cache's folder is named by a variable of the whole process


class Kernel:
    """A compiled function of one fixed signature; compiled at its first call or by compile()."""

    def __init__(self, function: Callable[..., None], signature: str, parallel: bool) -> None:
        self.name = f"{function.__module__}.{function.__name__}"
        self.signature = signature
        self._dispatcher = numba.njit(
            nogil=True, parallel=parallel, fastmath=True, error_model="numpy", boundscheck=False
        )(function)
        self._is_compiled = False

    def compile(self) -> None:
        """Load from the cache or compile; no call compiles anything afterwards."""
        with COMPILING:
            if not self._is_compiled:
                self._compile()

    def _compile(self) -> None:
        root = numba.config.CACHE_DIR
        try:
            numba.config.CACHE_DIR = str(
                Path(root or AppDirs("loraplex-kernels").user_cache_dir) / source_hash()
            )
            self._dispatcher.enable_caching()
        finally:
            numba.config.CACHE_DIR = root
        self._dispatcher.compile(self.signature)
        self._dispatcher.disable_compile()
        self._is_compiled = True

    @property
    def num_signatures(self) -> int:
        return len(self._dispatcher.signatures)

    def __call__(self, *arguments: float) -> None:
        if not self._is_compiled:
            self.compile()
        self._dispatcher(*arguments)


KERNELS: dict[str, Kernel] = {}
ROWS_OF_A_THREAD = 32  # of a norm and its like: fewer are done before another thread has begun


def threads_for(num_rows: int) -> int:
    """How many threads share some rows of a few microseconds each."""
    threads: int = numba.get_num_threads()
    return max(1, min(threads, num_rows // ROWS_OF_A_THREAD))


def kernel(signature: str, parallel: bool = True) -> Callable[[Callable[..., None]], Kernel]:
    """Make a function of addresses (int64) and numbers a kernel; reductions may be reordered by
    the compiler (fastmath), the same way in every call."""

    def make(function: Callable[..., None]) -> Kernel:
        made = Kernel(function, signature, parallel)
        KERNELS[made.name] = made
        return made

    return make


# A piece of a kernel. Stores through pointers belong in pieces: straight in a prange body Numba takes
# them for dead code.
piece = numba.njit(fastmath=True, error_model="numpy", nogil=True)


def _pointer(element: types.Type) -> Any:
    @intrinsic
    def cast(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(element)(types.int64), codegen  # type: ignore[attr-defined]

    return cast


pointer_u16 = _pointer(types.uint16)
pointer_f32 = _pointer(types.float32)
pointer_i32 = _pointer(types.int32)
pointer_i64 = _pointer(types.int64)


@intrinsic
def float_of_bits(typingctx: Any, bits: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), codegen


@intrinsic
def bits_of_float(typingctx: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), codegen


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Ask for the cache line at an address; harmless if it is not ours."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        i32, place = ir.IntType(32), builder.inttoptr(arguments[0], cgutils.voidptr_t)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, i32, i32, i32]),
            "llvm.prefetch.p0",
        )
        builder.call(function, [place, i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.none(types.int64), codegen


BF16, F32 = 0, 1
ITEM_BYTES = (2, 4)


def dtype_code(dtype: torch.dtype) -> int:
    """The number by which kernels know an element type."""
    if dtype == torch.bfloat16:
        return BF16
    if dtype == torch.float32:
        return F32
    raise UnsupportedDtype(dtype)


@piece
def prefetch_rows(address, num_bytes):
    for offset in range(0, num_bytes, 64):
        prefetch(address + offset)


@piece
def float_of_bf16(bits):
    return float_of_bits(np.uint32(bits) << np.uint32(16))


@piece
def address_of(array):
    """An array's address. Numba frees an array after the last use of its name: whoever made it ends with
    `keep`, or calls with the array itself."""
    return np.int64(array.ctypes.data)


@piece
def keep(array):
    """The array lives until here."""
    return address_of(array)


@piece
def load_row(address, dtype, out, count):
    """Write the float32 values of count elements at an address to the address out."""
    target = pointer_f32(out)
    if dtype == BF16:
        source = pointer_u16(address)
        for i in range(count):
            target[i] = float_of_bf16(source[i])
    else:
        values = pointer_f32(address)
        for i in range(count):
            target[i] = values[i]


@piece
def store_row(row, count, address, dtype):
    """Round count float32 values at row to the nearest (ties to even), store them at address."""
    source = pointer_f32(row)
    if dtype == BF16:
        target = pointer_u16(address)
        for i in range(count):
            bits = bits_of_float(source[i])
            rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> (
                np.uint32(16)
            )
            is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
            target[i] = np.uint16(np.uint32(0x7FC0) if is_nan else rounded)
    else:
        values = pointer_f32(address)
        for i in range(count):
            values[i] = source[i]


@piece
def exp(x):
    """e**x for x <= 0, to 2 ulp: 2**n times a polynomial, in operations that LLVM vectorises."""
    x = x if x > np.float32(-87.0) else np.float32(-87.0)
    n = np.int32(x * np.float32(1.44269504) - np.float32(0.5))  # truncation: nearest, as x <= 0
    whole = np.float32(n)
    f = (x - whole * np.float32(0.693359375)) - whole * np.float32(-2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * f + np.float32(1.3981999507e-3)
    p = p * f + np.float32(8.3334519073e-3)
    p = p * f + np.float32(4.1665795894e-2)
    p = p * f + np.float32(1.6666665459e-1)
    p = p * f + np.float32(5.0000001201e-1)
    p = p * f * f + f + np.float32(1.0)
    return float_of_bits(bits_of_float(p) + (np.uint32(n) << np.uint32(23)))
