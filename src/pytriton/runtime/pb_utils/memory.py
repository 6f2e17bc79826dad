# SPDX-License-Identifier: Apache-2.0
"""Kinds of memory that models name."""

from __future__ import annotations

import enum
import sys

from pytriton.runtime.pb_utils.arguments import integer


class MemoryType(enum.IntEnum):
    """Kinds of memory."""

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


class PreferredMemory:
    """The memory in which a model prefers the outputs of a called model.

    Args:
        preferred_memory_type: `TRITONSERVER_MEMORY_CPU` or `TRITONSERVER_MEMORY_GPU`.
        preferred_device_id: The number of the GPU.

    Raises:
        TypeError: An argument has the wrong type.
    """

    __slots__ = ("_device_id", "_memory_type")

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        if not isinstance(preferred_memory_type, MemoryType):
            raise TypeError(
                "preferred_memory_type must be TRITONSERVER_MEMORY_CPU or TRITONSERVER_MEMORY_GPU,"
                f" got {preferred_memory_type!r}"
            )
        self._memory_type = preferred_memory_type
        self._device_id = integer(preferred_device_id, "preferred_device_id")

    @property
    def is_host(self) -> bool:
        """Whether it is that of the host."""
        return self._memory_type is MemoryType.TRITONSERVER_MEMORY_CPU

    @property
    def device(self) -> int:
        """The number of the GPU."""
        return self._device_id

    def __repr__(self) -> str:
        return f"PreferredMemory({self._memory_type.name}, {self._device_id})"


class SharedMemory:
    """The shared memory for tensors; it grows and shrinks as needed and has no fixed size."""

    def free_memory(self) -> int:
        """Returns the number of free bytes; a constant, as there is no fixed region."""
        return sys.maxsize


shared_memory: SharedMemory = SharedMemory()
