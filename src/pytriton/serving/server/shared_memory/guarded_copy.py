# SPDX-License-Identifier: Apache-2.0
"""Copies from and to mapped memory that another process may shrink, on Linux.

Touching mapped memory beyond the end of its file raises SIGBUS, which ends the process. A system
call would only return fewer bytes, but takes four times as long (16 MiB on a Neoverse N1: 4.1 ms to
read and 5.2 ms to write, a copy of mapped memory 1.0 ms), because it looks each page up. So the
memory is mapped, and the signal is caught: its handler puts empty memory in place of the mapping,
the copy continues with that, and its caller learns that it failed.

The signal comes to the thread that copies, within `memcpy`, which was called without the
interpreter lock. So its handler may be a Python function: no lock is held that it could need.
The handler is installed only while there are copies. At all other times, the process has the one
that others have chosen, for example `faulthandler`.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import signal
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

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
