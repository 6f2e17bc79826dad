# SPDX-License-Identifier: Apache-2.0
"""Compiles the library that stands for CUDA's driver on machines without a GPU."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("libcuda.c")
FLAGS = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libcuda.so.1")
LIBRARIES = ("-lpthread",)

needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None or platform.system() != "Linux",
    reason="the library that stands for CUDA's driver needs Linux and a C compiler",
)


@functools.cache
def library_folder() -> Path:
    """The folder with `libcuda.so.1`, for LD_LIBRARY_PATH."""
    digest = hashlib.sha256(SOURCE.read_bytes() + repr((FLAGS, platform.machine())).encode())
    name = f"pytriton-test-cuda-{os.getuid()}-{digest.hexdigest()[:16]}"
    ready = Path(tempfile.gettempdir(), name)
    if not ready.is_dir():
        folder = Path(tempfile.mkdtemp(prefix="pytriton-test-cuda-"))
        library = folder / "libcuda.so.1"
        subprocess.run(["cc", *FLAGS, SOURCE, *LIBRARIES, "-o", library], check=True)
        try:
            folder.rename(ready)
        except OSError:  # another process of the tests was faster
            shutil.rmtree(folder)
    return ready


def environment(**more: str) -> dict[str, str]:
    """The environment of a process that finds the library as it would find the real one."""
    variables = {**os.environ, "LD_LIBRARY_PATH": str(library_folder()), **more}
    variables.pop("CUDA_VISIBLE_DEVICES", None)
    return variables
