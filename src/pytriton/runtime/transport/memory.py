# SPDX-License-Identifier: Apache-2.0
"""Shared memory without a name: a memfd on Linux, an unlinked file on other systems.

A name in /dev/shm would outlive a killed process and would count against a container's 64 MiB
limit; a file descriptor passed over a socket does neither. `PYTRITON_PORTABLE_CHANNEL=1` forces the
unlinked file, so that it is tested on Linux too.

The creator of a memfd seals its size, and the receiver maps it only if it is sealed: a process that
reads beyond the end of memory that another process has shrunk is killed by SIGBUS. An unlinked file
has no seals; only its size at the time of mapping can be checked.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import itertools
import mmap
import os
import sys
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pytriton.base.lazy_module import LazyModule

if TYPE_CHECKING:
    import tempfile
    from collections.abc import Callable

    MappedBytes = np.ndarray[Any, np.dtype[np.uint8]]
else:  # on Linux nothing needs it
    tempfile = LazyModule("tempfile")

PORTABLE_SETTING = "PYTRITON_PORTABLE_CHANNEL"

# From <linux/fcntl.h> and <linux/memfd.h>. A Python that was built with an old C library, like
# that of some packed environments, has neither these names nor `os.memfd_create`.
_F_ADD_SEALS = 1033
_F_GET_SEALS = 1034
_F_SEAL_SEAL = 1
_F_SEAL_SHRINK = 2
_F_SEAL_GROW = 4
_MFD_CLOEXEC = 1
_MFD_ALLOW_SEALING = 2
_NAME = "pytriton"
# Of servers, Jetson (two), and Windows' subsystem for Linux.
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/nvhost-ctrl", "/dev/nvmap", "/dev/dxg")
# With this, mmap does not keep a second file descriptor for each mapping.
_MAP_OPTIONS: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
_numbers = itertools.count(1)


def is_portable_forced() -> bool:
    """Returns whether Linux-only features must not be used."""
    return os.environ.get(PORTABLE_SETTING, "") not in ("", "0")


@functools.cache
def may_have_gpu() -> bool:
    """Returns whether processes of this machine may use a GPU of NVIDIA."""
    return any(map(os.path.exists, _GPU_DEVICES))


def has_sealed_memory() -> bool:
    """Returns whether shared memory is sealed here, so that no process can change its size."""
    return sys.platform == "linux" and not is_portable_forced()


def _create_memfd() -> int:
    flags = _MFD_CLOEXEC | _MFD_ALLOW_SEALING
    if hasattr(os, "memfd_create"):
        return os.memfd_create(_NAME, flags)
    create = getattr(ctypes.CDLL(None, use_errno=True), "memfd_create", None)
    descriptor: int = create(_NAME.encode(), flags) if create is not None else -1
    if descriptor < 0:
        number = ctypes.get_errno() if create is not None else errno.ENOSYS
        raise OSError(number, f"memfd_create: {os.strerror(number)}")
    return descriptor


def _create_descriptor(size: int) -> int:
    if not has_sealed_memory():
        # The file has no name when this returns, so that a killed process leaves nothing behind.
        with tempfile.TemporaryFile(prefix="pytriton-") as file:
            os.ftruncate(file.fileno(), size)
            return os.dup(file.fileno())
    import fcntl  # noqa: PLC0415  not on every system

    descriptor = _create_memfd()
    try:
        os.ftruncate(descriptor, size)
        # F_SEAL_SEAL: no other process can add a seal, such as the one against writing.
        fcntl.fcntl(descriptor, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_SEAL)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def check_received(descriptor: int, size: int) -> None:
    """Refuse memory of another process that could shrink while it is read.

    Raises:
        ValueError: The memory is smaller than its owner says, or its size is not sealed.
    """
    if has_sealed_memory() and not _is_sealed(descriptor):
        raise ValueError(
            "expected shared memory that is sealed against shrinking, got a descriptor without that"
            f" seal; {PORTABLE_SETTING} must be set for both processes or for none"
        )
    # After the seal was checked: from then on the size cannot change any more.
    actual = os.fstat(descriptor).st_size
    if actual < size:
        raise ValueError(f"expected shared memory of {size} bytes, got {actual}")


def _is_sealed(descriptor: int) -> bool:
    import fcntl  # noqa: PLC0415  as above

    try:
        return bool(fcntl.fcntl(descriptor, _F_GET_SEALS) & _F_SEAL_SHRINK)
    except OSError:  # it is not a memfd
        return False


class MappingObserver(Protocol):
    """Hears of the shared memory of this process. Its methods must not wait, but for the last."""

    def on_mapped(self, mapping: Mapping) -> None:
        """A region was mapped."""

    def on_unmapped(self, mapping: Mapping, held: MappedBytes) -> None:
        """A region will be unmapped when nothing refers to `held` any more."""

    def on_message(self) -> None:
        """A message has come with tensors in shared memory."""

    def on_device_memory(self) -> None:
        """A tensor has come that is in memory of a device, of another process."""

    def release_after_work(self, release: Callable[[], None]) -> None:
        """Call `release` after all work that devices were asked for until now; may wait for it."""


# At most one, in processes that run models: it tells CUDA about their memory.
observers: list[MappingObserver] = []


class Mapping:
    """A shared region mapped into this process; unmapped when nothing refers to it any more.

    It owns the file descriptor, by which the region can be passed on. Its id is unique in this
    process.

    Attributes:
        is_shared: Another process has got it, and may have pinned its pages for a device.
        release_later: What calls a function that releases a block of the region, when a device does
            not read the block any more; None: releases need not wait.
    """

    __slots__ = (
        "__weakref__",
        "_array",
        "address",
        "descriptor",
        "id",
        "is_shared",
        "release_later",
        "size",
    )

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor = descriptor  # first, so that it is closed if anything below fails
        # The array refers to the mmap and blocks refer to this object, so the region outlives all
        # views of it.
        self._array: MappedBytes = np.frombuffer(
            mmap.mmap(descriptor, size, **_MAP_OPTIONS), np.uint8
        )
        self.address: int = self._array.__array_interface__["data"][0]
        self.size = size
        self.id = next(_numbers)
        self.is_shared = False
        self.release_later: Callable[[Callable[[], None]], None] | None = None
        for observer in observers:
            observer.on_mapped(self)

    def view(self, offset: int, size: int) -> memoryview:
        """Returns a writable part of the region."""
        return self._array.data[offset : offset + size]

    def forget(self, offset: int, size: int) -> None:
        """Give the pages of a part back to the system, where that is possible; they become 0.

        Not those that another process may have pinned for a GPU, which reads these ever after, and
        not those that take their place.
        """
        if self.is_shared and may_have_gpu():
            return
        base: Any = self._array.base
        region = base.obj if isinstance(base, memoryview) else base
        start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (offset + size) // mmap.PAGESIZE * mmap.PAGESIZE
        if start < end and hasattr(region, "madvise") and hasattr(mmap, "MADV_REMOVE"):
            with contextlib.suppress(OSError):  # the file system of an unlinked file cannot do it
                region.madvise(mmap.MADV_REMOVE, start, end - start)

    def __del__(self) -> None:
        # The constructor of a subclass may have raised before there was a descriptor.
        descriptor = getattr(self, "descriptor", -1)
        if descriptor >= 0:
            os.close(descriptor)
        if observers and hasattr(self, "id"):  # else it was never mapped
            for observer in observers:
                observer.on_unmapped(self, self._array)


class Segment(Mapping):
    """A region that this process created and allocates blocks in."""

    __slots__ = ()

    def __init__(self, size: int) -> None:
        super().__init__(_create_descriptor(size), size)


class ReceivedSegment(Mapping):
    """A region of another process, received over a channel.

    Raises:
        ValueError: See `check_received`; the file descriptor is closed then.
    """

    __slots__ = ()

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor = descriptor  # as above: it is closed if this is refused
        os.set_inheritable(descriptor, False)
        check_received(descriptor, size)
        super().__init__(descriptor, size)
