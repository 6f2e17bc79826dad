# SPDX-License-Identifier: Apache-2.0
"""Memory that two processes share without a name: a memfd, elsewhere an unlinked file.

A name in /dev/shm would outlive a killed process and would count against a container's 64 MiB
limit; a descriptor passed over a socket does neither. `PYTRITON_PORTABLE_CHANNEL=1` forces the
portable form, so that it is tested on Linux too.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any

import numpy as np

PORTABLE_SETTING = "PYTRITON_PORTABLE_CHANNEL"


def is_portable_forced() -> bool:
    """Whether Linux-only facilities are to be left alone."""
    return os.environ.get(PORTABLE_SETTING, "") not in ("", "0")


def _create_descriptor(size: int) -> int:
    if hasattr(os, "memfd_create") and not is_portable_forced():
        descriptor = os.memfd_create("pytriton", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile(prefix="pytriton-") as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


class Mapping:
    """A shared region mapped into this process; unmapped when nothing refers to it any more."""

    __slots__ = ("_array", "address", "size")

    def __init__(self, descriptor: int, size: int) -> None:
        # The array holds the mmap and blocks hold this object, so the region outlives every view of
        # it.
        self._array: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(
            mmap.mmap(descriptor, size), np.uint8
        )
        self.address: int = self._array.__array_interface__["data"][0]
        self.size = size

    def view(self, offset: int, size: int) -> memoryview:
        """Writable bytes of the region."""
        return self._array.data[offset : offset + size]


class Segment(Mapping):
    """A region this process created and hands out pieces of."""

    __slots__ = ("descriptor", "id")

    def __init__(self, segment_id: int, size: int) -> None:
        self.id = segment_id
        self.descriptor = _create_descriptor(size)
        super().__init__(self.descriptor, size)

    def __del__(self) -> None:
        descriptor = getattr(self, "descriptor", -1)
        if descriptor >= 0:
            os.close(descriptor)
