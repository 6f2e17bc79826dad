# SPDX-License-Identifier: Apache-2.0
"""TRITONSERVER_BufferAttributes: where a buffer is, and how large."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.memory import Handles, put_half_word, put_word


@dataclasses.dataclass(slots=True)
class Attributes:
    """The attributes of one buffer."""

    memory_type: int = 0
    memory_type_id: int = 0
    byte_size: int = 0
    cuda_ipc_handle: int = 0  # an address of the caller


# The end of a function's name: the attribute, and the width in which C reads it.
_FIELDS: dict[str, tuple[str, Callable[[int, int], None]]] = {
    "MemoryType": ("memory_type", put_half_word),
    "MemoryTypeId": ("memory_type_id", put_word),
    "ByteSize": ("byte_size", put_word),
    "CudaIpcHandle": ("cuda_ipc_handle", put_word),
}


class BufferAttributes:
    """The attributes that exist."""

    def __init__(self) -> None:
        self.handles: Handles[Attributes] = Handles("attributes of a buffer")

    @export("TRITONSERVER_BufferAttributesNew")
    def _new(self, place: int) -> None:
        put_word(place, self.handles.add(Attributes()))

    @export("TRITONSERVER_BufferAttributesDelete")
    def _delete(self, handle: int) -> None:
        self.handles.pop(handle)

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Returns the functions that read or write one attribute."""
        functions = {}
        for name, (attribute, put) in _FIELDS.items():
            functions[f"TRITONSERVER_BufferAttributes{name}"] = self._getter(attribute, put)
            functions[f"TRITONSERVER_BufferAttributesSet{name}"] = self._setter(attribute)
        return functions

    def _getter(self, attribute: str, put: Callable[[int, int], None]) -> Callable[..., Any]:
        return lambda handle, place: put(place, getattr(self.handles.get(handle), attribute))

    def _setter(self, attribute: str) -> Callable[..., Any]:
        return lambda handle, value: setattr(self.handles.get(handle), attribute, value)
