# SPDX-License-Identifier: Apache-2.0
"""The threads of the library that numpy computes with, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COUNTS = """
import os, sys
from pytriton.base import openblas

openblas._FEW_CORES = 0
openblas.load_without_threads()
import numpy as np

print(len(os.listdir("/proc/self/task")))
square = np.ones((600, 600))
print((square @ square)[0, 0])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux starts servers like this")
def test_numpy_is_imported_without_threads_and_computes():
    done = subprocess.run(
        [sys.executable, "-c", COUNTS], capture_output=True, check=True, text=True
    )

    assert done.stdout.split() == ["1", "600.0"]


COPIES = """
import os
from pytriton.base.openblas import load_for_copying

load_for_copying()
import numpy as np

print(len(os.listdir("/proc/self/task")), os.environ.get("OPENBLAS_NUM_THREADS"))
square = np.ones((600, 600))
print((square @ square)[0, 0], len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
@pytest.mark.parametrize("given", [None, "3"])
def test_process_that_only_copies_has_no_threads_and_keeps_the_variable_for_others(given):
    environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
    if given is not None:
        environment["OPENBLAS_NUM_THREADS"] = given
    done = subprocess.run(
        [sys.executable, "-c", COPIES],
        capture_output=True,
        check=True,
        text=True,
        env=environment,
    )

    assert done.stdout.split() == ["1", str(given), "600.0", "1"]
