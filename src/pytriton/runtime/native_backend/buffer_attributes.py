# SPDX-License-Identifier: Apache-2.0
"""TRITONSERVER_BufferAttributes: where a buffer is, and how large."""

from __future__ import annotations

import dataclasses

from pytriton.runtime.native_backend.exports import export
from pytriton.runtime.native_backend.memory import Handles, put_half_word, put_word


@dataclasses.dataclass(slots=True)
class Attributes:
    """The attributes of one buffer."""

    memory_type: int = 0
    memory_type_id: int = 0
    byte_size: int = 0
    cuda_ipc_handle: int = 0  # an address of the caller


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

    @export("TRITONSERVER_BufferAttributesSetMemoryType")
    def _set_memory_type(self, handle: int, memory_type: int) -> None:
        self.handles.get(handle).memory_type = memory_type

    @export("TRITONSERVER_BufferAttributesSetMemoryTypeId")
    def _set_memory_type_id(self, handle: int, memory_type_id: int) -> None:
        self.handles.get(handle).memory_type_id = memory_type_id

    @export("TRITONSERVER_BufferAttributesSetByteSize")
    def _set_byte_size(self, handle: int, byte_size: int) -> None:
        self.handles.get(handle).byte_size = byte_size

    @export("TRITONSERVER_BufferAttributesSetCudaIpcHandle")
    def _set_cuda_ipc_handle(self, handle: int, cuda_ipc_handle: int) -> None:
        self.handles.get(handle).cuda_ipc_handle = cuda_ipc_handle

    @export("TRITONSERVER_BufferAttributesMemoryType")
    def _memory_type(self, handle: int, place: int) -> None:
        put_half_word(place, self.handles.get(handle).memory_type)

    @export("TRITONSERVER_BufferAttributesMemoryTypeId")
    def _memory_type_id(self, handle: int, place: int) -> None:
        put_word(place, self.handles.get(handle).memory_type_id)

    @export("TRITONSERVER_BufferAttributesByteSize")
    def _byte_size(self, handle: int, place: int) -> None:
        put_word(place, self.handles.get(handle).byte_size)

    @export("TRITONSERVER_BufferAttributesCudaIpcHandle")
    def _cuda_ipc_handle(self, handle: int, place: int) -> None:
        put_word(place, self.handles.get(handle).cuda_ipc_handle)
