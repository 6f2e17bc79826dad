# SPDX-License-Identifier: Apache-2.0
"""The server on a machine that has a GPU, as far as it looks."""

from __future__ import annotations

import runpy

from pytriton.serving.server.shared_memory import shared_memory

if __name__ == "__main__":
    shared_memory.visible_gpu_ids = lambda: (0,)
    runpy.run_module("pytriton.server", run_name="__main__", alter_sys=True)
