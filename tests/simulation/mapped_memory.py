# SPDX-License-Identifier: Apache-2.0
"""Shared memory of simulated processes, as `mmap`, `fcntl` and the project map and seal it."""

from __future__ import annotations

import ctypes
import errno
import fcntl as real_fcntl
import functools
import mmap as real_mmap
import struct
import termios
from collections.abc import Callable
from typing import Any

from tests.simulation.files import MemoryFile, system_error
from tests.simulation.machine import DESCRIPTORS_PER_PROCESS, Machine
from tests.simulation.stand_in import SYSTEM_CALL_NS, StandIn

_COPIED_BYTES = 64 << 10  # of mapped memory, between which other threads run
_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034


class Fcntl(StandIn):
    def fcntl(self, descriptor: int, command: int, argument: int = 0) -> Any:
        if descriptor < DESCRIPTORS_PER_PROCESS:
            return real_fcntl.fcntl(descriptor, command, argument)
        file = self.machine.file_of(descriptor)
        if not isinstance(file, MemoryFile):
            raise system_error(errno.EINVAL)
        if command == _F_ADD_SEALS:
            file.add_seals(argument)
            return 0
        return file.seals if command == _F_GET_SEALS else 0

    def ioctl(self, descriptor: int, command: int, argument: bytes = b"") -> bytes:
        assert command == termios.TIOCOUTQ
        return struct.pack("i", self.machine.file_of(descriptor).unread_bytes)


class MappedMemory:
    """As `mmap.mmap`: it is unmapped when nothing refers to it.

    Classes for memory of a size are subclasses of ctypes, whose objects have a buffer.
    """

    unmap: Callable[[], None]

    def size(self) -> int:
        return len(self)  # type: ignore[arg-type]

    def __getitem__(self, key: Any) -> Any:
        part = memoryview(self).cast("B")[key]  # type: ignore[arg-type]
        return part.tobytes() if isinstance(key, slice) else part

    def __setitem__(self, key: Any, value: Any) -> None:
        memoryview(self).cast("B")[key] = value  # type: ignore[arg-type]

    def close(self) -> None:
        self.unmap()

    def __del__(self) -> None:
        self.unmap()


@functools.lru_cache(maxsize=256)
def _mapped_memory(size: int) -> Any:
    return type("mmap", (MappedMemory, ctypes.c_ubyte * size), {})


def map_memory(machine: Machine, descriptor: int, size: int, *, trackfd: bool = True) -> Any:
    """Map shared memory; as long as it is mapped, or the process lives, it is there.

    Python keeps a descriptor of its own for each mapping, unless it is told not to.
    """
    process, file = machine.process_of(descriptor), machine.file_of(descriptor)
    if trackfd:
        kept = process.open(file)

        def unmap() -> None:
            if process.files.get(kept) is file:
                process.close(kept)

    else:
        file.references += 1

        def unmap() -> None:
            if unmap in process.exit_watchers:
                process.exit_watchers.remove(unmap)
                file.release()

        process.exit_watchers.append(unmap)
    mapping = _mapped_memory(size).from_buffer(file.data)
    mapping.unmap = unmap
    return mapping


class Mmap(StandIn):
    def mmap(self, descriptor: int, size: int, *args: Any, **options: Any) -> Any:
        if descriptor < DESCRIPTORS_PER_PROCESS:
            return real_mmap.mmap(descriptor, size, *args, **options)
        data = self.machine.file_of(descriptor).data
        if size > len(data):
            raise ValueError("mmap length is greater than file size")
        return map_memory(self.machine, descriptor, size or len(data), **options)


class GuardedMapping:
    """As the project's mapping of memory that a client may shrink while it is copied."""

    machine: Machine

    def __init__(self, descriptor: int, size: int) -> None:
        process = self.machine.process_of(descriptor)
        self._file = file = self.machine.file_of(descriptor)
        file.references += 1

        def unmap() -> None:
            if unmap in process.exit_watchers:
                process.exit_watchers.remove(unmap)
                file.release()

        process.exit_watchers.append(unmap)
        self._unmap = unmap
        self.is_broken = False
        self.size = size

    def read(self, offset: int, target: int, size: int) -> bool:
        for at in range(0, size, _COPIED_BYTES):
            part = self._part(offset + at, min(_COPIED_BYTES, size - at))
            ctypes.memmove(target + at, part, len(part))
        return not self.is_broken

    def write(self, offset: int, source: int, size: int) -> bool:
        for at in range(0, size, _COPIED_BYTES):
            count = min(_COPIED_BYTES, size - at)
            if len(self._part(offset + at, count)) == count:
                self._file.write(offset + at, ctypes.string_at(source + at, count))
        return not self.is_broken

    def _part(self, offset: int, size: int) -> bytes:
        """A part, after others have run; what the file has no more of is zero."""
        assert offset + size <= self.size
        self.machine.sleep(SYSTEM_CALL_NS)
        part: bytes = b"" if self.is_broken else self._file.read(offset, size)
        if len(part) < size:
            self.is_broken = True
        return part

    def __del__(self) -> None:
        self._unmap()
