"""After warming up nothing compiles, whatever comes."""

import os
import platform
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from loraplex_kernels._numba import Kernel, pointer_u16
from loraplex_kernels.device import implementation
from loraplex_kernels.errors import UnsupportedDevice, UnsupportedDtype
from loraplex_kernels.norm import rms_norm
from loraplex_kernels.warm_up import signature_counts, warm_up


def test_each_kernel_has_one_signature_and_keeps_it() -> None:
    warm_up()
    counts = signature_counts()
    assert set(counts.values()) == {1}
    frozen = torch.randn(3, 8).numpy()
    frozen.flags.writeable = False  # a read-only array is another type to Numba
    with pytest.warns(UserWarning, match="not writable"):
        rms_norm(torch.from_numpy(frozen), torch.ones(8), 1e-5)
    rms_norm(torch.randn(3, 8).bfloat16(), torch.ones(8).bfloat16(), 1)  # an int where a float goes
    assert signature_counts() == counts


def test_threads_that_call_a_kernel_first_compile_it_once() -> None:
    values = np.ones((8, 2), np.uint16)

    def increase(address: int) -> None:
        pointer_u16(address)[0] += 1

    made = Kernel(increase, "void(int64)", parallel=False)
    start = threading.Barrier(len(values))

    def call(address: int) -> None:
        start.wait()
        made(address)

    with ThreadPoolExecutor(len(values)) as threads:
        list(threads.map(call, (row.ctypes.data for row in values)))
    assert (values[:, 0] == 2).all()
    assert made.num_signatures == 1


def test_a_missing_kernel_is_an_error() -> None:
    with pytest.raises(UnsupportedDtype):
        rms_norm(torch.randn(3, 8).double(), torch.ones(8).double(), 1e-5)
    with pytest.raises(UnsupportedDevice):
        implementation("loraplex_kernels.norm", "meta")


def test_kernels_run_on_threads_that_wait_for_nobody() -> None:
    script = (
        "import numba, torch; from loraplex_kernels.norm import rms_norm;"
        "rms_norm(torch.ones(4, 64), torch.ones(64), 1e-5);"
        "print(numba.threading_layer(), numba.get_num_threads())"
    )
    environment = os.environ | {"NUMBA_NUM_THREADS": "2", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("NUMBA_THREADING_LAYER", None)
    said = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    has_wheel = (sys.platform, platform.machine()) == ("linux", "x86_64")
    assert said.stdout.split() == ["tbb" if has_wheel else "omp", "2"]
