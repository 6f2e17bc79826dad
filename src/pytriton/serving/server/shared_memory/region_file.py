# SPDX-License-Identifier: Apache-2.0
"""Opens, reads and writes objects of POSIX shared memory.

On Linux another process may shrink them at any time. Small parts are read and written by system
calls, which then transfer fewer bytes; large ones by a copy that survives it. Other systems cannot
read such objects, but there their size never changes after they were made, so they are mapped.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import importlib
import mmap
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from pytriton.base.dtypes import Buffer
    from pytriton.serving.server.shared_memory.regions import RegionFile


_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_FAILED = ctypes.c_void_p(-1).value
_ACCESS = mmap.PROT_READ | mmap.PROT_WRITE
_SIGBUS = int(signal.SIGBUS)
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int)


class _Action(ctypes.Structure):
    """The record of `sigaction`: the rest differs between processors, and is only kept."""

    _fields_ = (("handler", ctypes.c_void_p), ("rest", ctypes.c_char * 248))


class _Library(NamedTuple):
    """The functions of the C library; they are called without the interpreter lock."""

    mmap: Callable[..., int]
    munmap: Callable[..., int]
    memcpy: Callable[..., int]
    signal: Callable[..., int | None]
    sigaction: Callable[..., int]


@functools.cache
def _library() -> _Library:
    library = ctypes.CDLL(None)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
        *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
    )
    library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    library.memcpy.restype = ctypes.c_void_p
    library.memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    library.signal.restype = ctypes.c_void_p
    library.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    library.sigaction.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    return _Library(library.mmap, library.munmap, library.memcpy, library.signal, library.sigaction)


class GuardedMapping:
    """A file that is mapped as a whole; it is unmapped when nothing refers to it any more.

    Raises:
        OSError: It cannot be mapped.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self.is_broken = False  # its file was shrunk: what was copied since then is worth nothing
        self.address = 0
        self.size = size
        address = _library().mmap(None, size, _ACCESS, mmap.MAP_SHARED, descriptor, 0)
        if address == _FAILED or not address:
            raise OSError("the memory cannot be mapped")
        self.address = address

    def read(self, offset: int, target: int, size: int) -> bool:
        """Copy from this memory; returns whether its file was large enough all the time."""
        self._check(offset, size)
        return self._copy(target, self.address + offset, size)

    def write(self, offset: int, source: int, size: int) -> bool:
        """Copy to this memory; returns whether its file was large enough all the time."""
        self._check(offset, size)
        return self._copy(self.address + offset, source, size)

    def _check(self, offset: int, size: int) -> None:
        if offset < 0 or size < 0 or offset + size > self.size:
            raise ValueError(f"expected a part of {self.size} bytes, got {size} at {offset}")

    def _copy(self, target: int, source: int, size: int) -> bool:
        _guard.begin(self)
        try:
            _library().memcpy(target, source, size)
        finally:
            _guard.end()
        return not self.is_broken

    def replace(self) -> bool:
        """Put empty memory in place of the file; returns whether that was possible."""
        self.is_broken = True
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED | _MAP_NORESERVE
        return _library().mmap(self.address, self.size, _ACCESS, flags, -1, 0) == self.address

    def __del__(self) -> None:
        if self.address:
            _library().munmap(self.address, self.size)


class _Copy:
    """A copy that a thread makes now."""

    __slots__ = ("has_failed", "mapping")

    def __init__(self, mapping: GuardedMapping) -> None:
        self.mapping = mapping
        self.has_failed = False  # the mapping was replaced for it


class _Guard:
    """The handler of SIGBUS, and the copies that it is for."""

    def __init__(self) -> None:
        self._copying: dict[int, _Copy] = {}  # by thread
        self._lock = threading.Lock()
        self._handler: Any = None  # kept, as the system has only its address
        self._own, self._earlier, self._found = (_Action() for _ in range(3))
        # Their addresses, which `sigaction` takes in less time.
        self._at_own = ctypes.addressof(self._own)
        self._at_earlier = ctypes.addressof(self._earlier)
        self._at_found = ctypes.addressof(self._found)

    def begin(self, mapping: GuardedMapping) -> None:
        """Catch the signal from now on: this thread copies from or to a mapping."""
        with self._lock:
            if not self._copying:
                self._install()
            self._copying[threading.get_ident()] = _Copy(mapping)

    def end(self) -> None:
        with self._lock:
            del self._copying[threading.get_ident()]
            if not self._copying:
                self._uninstall()

    def _install(self) -> None:
        sigaction = _library().sigaction
        if self._handler is not None:
            sigaction(_SIGBUS, self._at_own, self._at_earlier)
            return
        self._handler = _Handler(self._on_bus_error)
        sigaction(_SIGBUS, None, self._at_earlier)
        _library().signal(_SIGBUS, ctypes.cast(self._handler, ctypes.c_void_p))
        sigaction(_SIGBUS, None, self._at_own)

    def _uninstall(self) -> None:
        sigaction = _library().sigaction
        sigaction(_SIGBUS, self._at_earlier, self._at_found)
        if self._found.handler != self._own.handler:  # another one was installed meanwhile
            sigaction(_SIGBUS, self._at_found, None)

    def _on_bus_error(self, number: int) -> None:
        copy = self._copying.get(threading.get_ident())
        # A copy that fails once more does so because of the memory on its other side. Whether the
        # mapping is broken does not tell that: another thread may have replaced it just now.
        if copy is not None and not copy.has_failed and copy.mapping.replace():
            copy.has_failed = True
        else:
            # It is not ours: the instruction is executed again, and the earlier handler called.
            _library().sigaction(_SIGBUS, self._at_earlier, None)


_guard = _Guard()


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
