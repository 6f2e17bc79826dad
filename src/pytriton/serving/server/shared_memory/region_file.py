# SPDX-License-Identifier: Apache-2.0
"""Opens, reads and writes objects of POSIX shared memory.

On Linux another process may shrink them at any time. Small parts are read and written by system
calls, which then transfer fewer bytes; large ones by `guarded_copy`. Other systems cannot read such
objects, but there their size never changes after they were made, so they are mapped.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import mmap
import os
import stat
import sys
from typing import TYPE_CHECKING

import numpy as np

from pytriton.serving.server.shared_memory.guarded_copy import GuardedMapping

if TYPE_CHECKING:
    from pytriton.base.dtypes import Buffer
    from pytriton.serving.server.shared_memory.regions import RegionFile

_LARGE_BYTES = 128 << 10  # smaller parts are read sooner than guarded (10.4 us and 11.2 us)
_Byte = ctypes.c_char
_IS_LINUX: bool = sys.platform.startswith("linux")
_FOLDER = "/dev/shm/"  # noqa: S108  where Linux has the objects
# A FIFO of this name must not block the server, and a link must not lead it elsewhere.
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def open_file(object_name: str) -> RegionFile:
    """Open an object that exists already.

    Raises:
        OSError: There is none of this name, it is not ordinary memory, or this user must not write
            to it.
    """
    if _IS_LINUX:
        return received_file(os.open(_FOLDER + object_name, _FLAGS))
    return received_file(_open_portably(object_name))


def received_file(descriptor: int) -> RegionFile:
    """Make a file of a descriptor, which it owns from now on, also if this fails.

    Raises:
        OSError: It is not ordinary memory.
    """
    return LinuxFile(descriptor) if _IS_LINUX else MappedFile(descriptor)


def _open_portably(object_name: str) -> int:
    # The module is what `multiprocessing.shared_memory` uses, and has no public name.
    shm_open = importlib.import_module("_posixshmem").shm_open
    descriptor: int = shm_open(f"/{object_name}", os.O_RDWR, mode=0)
    return descriptor


class LinuxFile:
    """An object whose size may change."""

    __slots__ = ("_has_shrunk", "_mapping", "descriptor")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._mapping: GuardedMapping | None = None  # until a large part is copied
        self._has_shrunk = False  # then it is not mapped again
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")

    @property
    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def read_into(self, memory: memoryview, offset: int) -> int:
        size = len(memory)
        if size >= _LARGE_BYTES and (mapping := self._map(offset + size)) is not None:
            target = _Byte.from_buffer(memory)
            if mapping.read(offset, ctypes.addressof(target), size):
                return size
            self._forget_mapping()
        done = 0
        while done < len(memory):
            count = os.preadv(self.descriptor, [memory[done:]], offset + done)
            if not count:
                break
            done += count
        return done

    def write(self, data: Buffer, offset: int) -> None:
        view = memoryview(data)
        size = len(view)
        if size >= _LARGE_BYTES and (mapping := self._map(offset + size)) is not None:
            source: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
            if mapping.write(offset, source, size):
                return
            self._forget_mapping()
            if self.size < offset + size:
                raise OSError(errno.ENXIO, "it was made smaller")  # else it would grow again
        done = 0
        while done < len(view):
            done += os.pwrite(self.descriptor, view[done:], offset + done)

    def _map(self, end: int) -> GuardedMapping | None:
        """Returns the mapped object if it has `end` bytes now; None if it has to be read."""
        size = self.size  # asked once, as it may be another one at the next time
        if self._has_shrunk or size < end:
            return None
        mapping = self._mapping
        if mapping is None or mapping.size < end:
            try:
                mapping = self._mapping = GuardedMapping(self.descriptor, size)
            except OSError:
                return None
        return mapping

    def _forget_mapping(self) -> None:
        self._has_shrunk = True
        self._mapping = None

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.descriptor)


class MappedFile:
    """An object that is mapped, as its size cannot change."""

    __slots__ = ("_memory", "descriptor")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory: mmap.mmap | None = None
        # The size is rounded up to whole pages; nothing else can be asked about it.
        size = os.fstat(descriptor).st_size
        try:
            if size:
                self._memory = mmap.mmap(descriptor, size)
        except (OSError, ValueError):
            raise OSError(errno.EINVAL, "it cannot be mapped") from None

    @property
    def size(self) -> int:
        return 0 if self._memory is None else len(self._memory)

    def read_into(self, memory: memoryview, offset: int) -> int:
        if self._memory is None:
            return 0
        with memoryview(self._memory)[offset : offset + len(memory)] as source:
            memory[: len(source)] = source
            return len(source)

    def write(self, data: Buffer, offset: int) -> None:
        if self._memory is not None:
            with memoryview(self._memory)[offset : offset + len(data)] as target:
                target[:] = data

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.descriptor)
