# SPDX-License-Identifier: Apache-2.0
"""TRITONBACKEND_MemoryManager: memory that a backend allocates for itself."""

from __future__ import annotations

import ctypes

from pytriton.base.errors import InvalidArgumentError, UnavailableError, UnsupportedError
from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.memory import put_word

_GPU = 2  # TRITONSERVER_MEMORY_GPU


class MemoryManager:
    """Gives plain memory for CPU and for pinned memory, and no memory of GPUs."""

    def __init__(self) -> None:
        # They keep the interpreter's lock: both take less time than to release and to acquire it.
        library = ctypes.PyDLL(None)
        self._malloc, self._free = library.malloc, library.free
        self._malloc.restype = ctypes.c_void_p
        self._malloc.argtypes = [ctypes.c_size_t]
        self._free.restype = None
        self._free.argtypes = [ctypes.c_void_p]
        self._blocks: set[int] = set()

    def __len__(self) -> int:
        return len(self._blocks)

    @export("TRITONBACKEND_MemoryManagerAllocate")
    def _allocate(self, manager: int, buffer: int, kind: int, device: int, size: int) -> None:
        if kind == _GPU:
            raise UnsupportedError("GPU memory is not supported, only memory of the CPU")
        address = self._malloc(max(1, size))
        if not address:
            raise UnavailableError(f"failed to allocate {size} bytes of memory")
        self._blocks.add(address)
        put_word(buffer, address)

    @export("TRITONBACKEND_MemoryManagerFree")
    def _release(self, manager: int, buffer: int, kind: int, device: int) -> None:
        if buffer not in self._blocks:
            raise InvalidArgumentError(
                f"expected memory that was allocated and not freed, got {buffer:#x}"
            )
        self._blocks.discard(buffer)
        self._free(buffer)
