# SPDX-License-Identifier: Apache-2.0
"""The threads of the library that numpy computes with, in a process of its own."""

from __future__ import annotations

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
