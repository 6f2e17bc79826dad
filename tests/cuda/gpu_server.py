# SPDX-License-Identifier: Apache-2.0
"""The server on a machine that has a GPU, as far as it looks, or FAKE_CUDA_DEVICES of them."""

from __future__ import annotations

import os
import runpy

from pytriton.serving.server import repository_core
from pytriton.serving.server.shared_memory import shared_memory

if __name__ == "__main__":
    numbers = tuple(range(int(os.environ.get("FAKE_CUDA_DEVICES", "1"))))
    shared_memory.visible_gpu_ids = repository_core.visible_gpu_ids = lambda: numbers
    runpy.run_module("pytriton.server", run_name="__main__", alter_sys=True)
