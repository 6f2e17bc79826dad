# SPDX-License-Identifier: Apache-2.0
"""Loads the library that numpy computes with so that a start does not pay for its threads.

OpenBLAS starts a thread for each core when it is loaded, and each of them polls for 0.1 s: on 16
cores, a process that imports numpy takes 1.2 s of processor time more. A process that computes
nothing with numpy never needs them; others get them when they do.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import os
import sys
import threading
from pathlib import Path

_FEW_CORES = 2  # with so many, this gains nothing
_THREAD_COUNT = "OPENBLAS_NUM_THREADS"


def load_for_copying() -> None:
    """Import numpy in a process that only copies with it, so that it never has more threads.

    The environment is left as it is, for processes that this one starts.
    """
    given = os.environ.get(_THREAD_COUNT)
    os.environ[_THREAD_COUNT] = "1"
    try:
        importlib.import_module("numpy")
    finally:
        if given is None:
            del os.environ[_THREAD_COUNT]
        else:
            os.environ[_THREAD_COUNT] = given


def load_without_threads() -> None:
    """Load numpy's OpenBLAS if there is one, and end its threads.

    It starts them again when it first needs them. A process that has threads or numpy already is
    left as it is.
    """
    if sys.platform != "linux" or "numpy" in sys.modules or threading.active_count() > 1:
        return
    if len(os.sched_getaffinity(0)) <= _FEW_CORES:
        return
    paths = _libraries()
    for path in paths:
        with contextlib.suppress(OSError):  # then numpy reports it
            ctypes.CDLL(path)
    if paths and (pid := _fork()):
        os.waitpid(pid, 0)


def _libraries() -> list[str]:
    """Returns the OpenBLAS of numpy's wheel; none if numpy was built with another library."""
    numpy = importlib.util.find_spec("numpy")
    if numpy is None or numpy.origin is None:
        return []
    package = Path(numpy.origin).parent
    return [str(path) for path in package.with_name("numpy.libs").glob("*openblas*")]


def _fork() -> int:
    """Fork a process that ends at once: before every fork, OpenBLAS ends its threads."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return pid
