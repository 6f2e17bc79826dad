# SPDX-License-Identifier: Apache-2.0
"""Takes descriptors or memory away from a process, as the system does when it has none left."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def open_descriptors(pid: int | str = "self") -> set[int]:
    """The numbers of a process's file descriptors."""
    gc.collect()  # or what other tests left is closed at another time
    numbers = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            each.readlink()
            numbers.add(int(each.name))
    return numbers


@contextlib.contextmanager
def no_descriptors(pid: int = 0, spare: int = 0) -> Iterator[None]:
    """Let a process (0: this one) open no more than `spare` further descriptors.

    Descriptors above the limit stay open.
    """
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = open_descriptors(pid or os.getpid())
    limit = 0
    for _ in range(spare):
        while limit in taken:
            limit += 1
        limit += 1
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


@contextlib.contextmanager
def little_memory(spare_bytes: int) -> Iterator[None]:
    """Let this process map only `spare_bytes` more."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what other tests left would be used again
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + spare_bytes
    resource.setrlimit(resource.RLIMIT_AS, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
