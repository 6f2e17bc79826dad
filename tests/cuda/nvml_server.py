# SPDX-License-Identifier: Apache-2.0
"""The server on a machine that has a GPU, as far as it looks, with NVML that a file tells of."""

from __future__ import annotations

import runpy
import sys

from pytriton.serving.server import repository_core
from pytriton.serving.server.shared_memory import shared_memory
from tests.cuda import fake_nvml

if __name__ == "__main__":
    shared_memory.visible_gpu_ids = repository_core.visible_gpu_ids = lambda: (0,)
    sys.modules["pynvml"] = fake_nvml
    runpy.run_module("pytriton.server", run_name="__main__", alter_sys=True)
