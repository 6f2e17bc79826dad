# SPDX-License-Identifier: Apache-2.0
"""Loads a stand-in for `libtritonserver.so` into this process, with our functions behind it.

glibc does not search for a library that another one needs if one of that name is loaded already.
So a compiled backend that is loaded after the stub is connected to it, wherever it was linked to.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytriton.base.errors import UnsupportedError
from pytriton.runtime.native_backend.callbacks import Callbacks
from pytriton.runtime.native_backend.elf import MACHINES, SLOTS_SYMBOL, Processor, stub_library

_MFD_CLOEXEC = 1
_MFD_EXEC = 0x10  # since Linux 6.3; without it a kernel may be set up to warn or to refuse


def this_machine() -> Processor:
    """Returns the processor of this machine.

    Raises:
        UnsupportedError: Compiled backends do not run on this system; the text says why.
    """
    if sys.platform != "linux":
        raise UnsupportedError(
            f"compiled backends run on Linux only, and this is {platform.system() or sys.platform}"
        )
    name = os.uname().machine
    if name not in MACHINES:
        raise UnsupportedError(
            f"compiled backends run on {' and '.join(MACHINES)} only, and this machine is {name}"
        )
    if not _has_glibc():
        raise UnsupportedError(
            "compiled backends need a Python that uses the C library glibc, and this one does not"
        )
    return MACHINES[name]


def _has_glibc() -> bool:
    try:
        version = os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):
        return False
    return bool(version) and str(version).startswith("glibc")


class Stub:
    """A loaded stub library. It stays loaded until the process ends.

    Args:
        soname: The name by which the backend needs it.
        functions: The names that it exports.
        callbacks: Makes the function for each name.
        code: Machine code that answers some calls without us, see `elf.stub_library`.
    """

    def __init__(
        self,
        soname: str,
        functions: Sequence[str],
        callbacks: Callbacks,
        code: Mapping[str, bytes] | None = None,
    ) -> None:
        self._callbacks = callbacks  # keeps them alive
        image = stub_library(soname, functions, this_machine(), code)
        self._library = _load(image, soname)
        slots = (ctypes.c_uint64 * len(functions)).in_dll(self._library, SLOTS_SYMBOL)
        for index, name in enumerate(functions):
            slots[index] = callbacks.address(name)
        _loaded.append(self)


_loaded: list[Stub] = []  # kept: C code may call their functions until the process ends


def _load(image: bytes, soname: str) -> ctypes.CDLL:
    # Libraries that were linked without naming this one find its functions only if it is global.
    try:
        descriptor = _memory_file(soname)
    except OSError:
        return _load_from_folder(image, soname)
    # The descriptor stays open: glibc recognises libraries by the path that they were loaded from,
    # and would take a later one with the same number for this one.
    os.write(descriptor, image)
    try:
        return ctypes.CDLL(f"/proc/self/fd/{descriptor}", ctypes.RTLD_GLOBAL)
    except OSError:  # without /proc, or where memory files must not be executed
        os.close(descriptor)
        return _load_from_folder(image, soname)


def _memory_file(name: str) -> int:
    if not hasattr(os, "memfd_create"):
        raise OSError("this Python was built without memfd_create")
    try:
        return os.memfd_create(name, _MFD_CLOEXEC | _MFD_EXEC)
    except OSError:
        return os.memfd_create(name, _MFD_CLOEXEC)


def _load_from_folder(image: bytes, soname: str) -> ctypes.CDLL:
    folder = tempfile.mkdtemp(prefix="pytriton-")
    try:
        path = Path(folder, soname)
        path.write_bytes(image)
        return ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
