# SPDX-License-Identifier: Apache-2.0
"""The gRPC methods that register, list and unregister shared memory of clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytriton.base.protos import service_pb2
from pytriton.serving.server.grpc.documents import respond_when_known

if TYPE_CHECKING:
    from pytriton.serving.server.grpc.documents import Method
    from pytriton.serving.server.shared_memory.shared_memory import SharedMemory

_API = "shared-memory"


class GrpcSharedMemory:
    """Turns request messages into response messages, or into coroutines that return them."""

    def __init__(self, shared_memory: SharedMemory) -> None:
        self._shared_memory = shared_memory

    def answers(self) -> dict[str, tuple[str, Method]]:
        """Returns, for each method, its group for authorisation and the function that answers."""
        return {
            "SystemSharedMemoryStatus": (_API, self.status),
            "SystemSharedMemoryRegister": (_API, self.register),
            "SystemSharedMemoryUnregister": (_API, self.unregister),
            "CudaSharedMemoryStatus": (_API, self.cuda_status),
            "CudaSharedMemoryRegister": (_API, self.cuda_register),
            "CudaSharedMemoryUnregister": (_API, self.cuda_unregister),
        }

    def status(self, request: Any) -> Any:
        """List one region or all."""
        response = service_pb2.SystemSharedMemoryStatusResponse()
        for region in self._shared_memory.status(request.name):
            status = response.regions[region.name]
            status.name = region.name
            status.key = region.key
            status.offset = region.offset
            status.byte_size = region.byte_size
        return response

    def register(self, request: Any) -> Any:
        self._shared_memory.check_allowed()
        work = self._shared_memory.register(
            request.name, request.key, request.offset, request.byte_size
        )
        response = service_pb2.SystemSharedMemoryRegisterResponse()
        return respond_when_known(work, lambda _: response)

    def unregister(self, request: Any) -> Any:
        """Unregister a region, or all without a name."""
        self._shared_memory.check_allowed()
        work = self._shared_memory.unregister(request.name)
        response = service_pb2.SystemSharedMemoryUnregisterResponse()
        return respond_when_known(work, lambda _: response)

    def cuda_status(self, request: Any) -> Any:
        """List no region: there are none of CUDA memory."""
        self._shared_memory.check_cuda_status(request.name)
        return service_pb2.CudaSharedMemoryStatusResponse()

    def cuda_register(self, request: Any) -> None:
        """Refuse to register a region of CUDA memory."""
        self._shared_memory.check_allowed()
        self._shared_memory.register_cuda(request.name)

    def cuda_unregister(self, request: Any) -> Any:
        """Do nothing: there are no regions of CUDA memory, and an unknown one is no error."""
        self._shared_memory.check_allowed()
        return service_pb2.CudaSharedMemoryUnregisterResponse()
