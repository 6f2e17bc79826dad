# SPDX-License-Identifier: Apache-2.0
"""The gRPC methods that return information about the server and its models.

`pytriton.serving.server.api.documents` makes the same responses for HTTP, as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf import json_format

from pytriton.base.errors import UnavailableError
from pytriton.base.protos import service_pb2
from pytriton.protocol.repository import (
    check_repository,
    read_unload_parameters,
)
from pytriton.protocol.settings import log_settings_response, read_log_settings_pb
from pytriton.serving.server.api.documents import EXTENSIONS, TRITON_VERSION

if TYPE_CHECKING:
    from pytriton.base.model_spec import ModelTensor
    from pytriton.protocol.repository_pb import ModelLoadRequest
    from pytriton.serving.engine.client import Answer, EngineClient, IndexEntry
    from pytriton.serving.server.api.repository_service import RepositoryService
    from pytriton.serving.server.shared_memory.shared_memory import ClientSharedMemory

T = TypeVar("T")
Method = Callable[[Any], Any]


class DocumentService:
    """Turns request messages into response messages, or into coroutines that return them."""

    def __init__(self, engine: EngineClient, server_id: str) -> None:
        self._engine = engine
        self._server_id = server_id

    def answers(self) -> dict[str, tuple[str, Method]]:
        """Returns, for each method, its group for authorisation and the function that answers."""
        return {
            "ServerLive": ("health", self.server_live),
            "ServerReady": ("health", self.server_ready),
            "ModelReady": ("health", self.model_ready),
            "ServerMetadata": ("metadata", self.server_metadata),
            "ModelMetadata": ("metadata", self.model_metadata),
            "ModelConfig": ("model-config", self.model_config),
            "ModelStatistics": ("statistics", self.model_statistics),
            "TraceSetting": ("trace", self.trace_setting),
        }

    def server_live(self, request: Any) -> Any:
        self._refuse_exiting()
        return service_pb2.ServerLiveResponse(live=True)

    def server_ready(self, request: Any) -> Any:
        self._refuse_exiting()
        return respond_when_known(
            self._engine.is_ready(), _ready_as(service_pb2.ServerReadyResponse)
        )

    def model_ready(self, request: Any) -> Any:
        self._refuse_exiting()
        is_ready = self._engine.is_model_ready(request.name, request.version)
        return respond_when_known(is_ready, _ready_as(service_pb2.ModelReadyResponse))

    def server_metadata(self, request: Any) -> Any:
        """Report the name, the version and the extensions of the server."""
        return service_pb2.ServerMetadataResponse(
            name=self._server_id, version=TRITON_VERSION, extensions=EXTENSIONS
        )

    def model_metadata(self, request: Any) -> Any:
        """Report a model's tensors, and its ready versions or the requested one."""
        spec = self._engine.lookup(request.name, request.version).spec
        versions = self._engine.ready_versions(request.name)
        if request.version:
            versions = [spec.version]
        return service_pb2.ModelMetadataResponse(
            name=spec.name,
            versions=[str(version) for version in versions],
            platform=spec.platform,
            inputs=_tensors(spec.inputs),
            outputs=_tensors(spec.outputs),
        )

    def model_config(self, request: Any) -> Any:
        """Report a model's configuration, converted from the JSON text for HTTP clients."""
        response = service_pb2.ModelConfigResponse()
        model = self._engine.lookup(request.name, request.version)
        json_format.Parse(model.config_json, response.config)
        return response

    def model_statistics(self, request: Any) -> Any:
        statistics = self._engine.statistics(request.name, request.version)
        return respond_when_known(statistics, _statistics_response)

    def trace_setting(self, request: Any) -> Any:
        """Apply the changes in the request to the trace settings, and report all settings."""
        changes = {name: list(setting.value) for name, setting in request.settings.items()}
        settings = self._engine.change_trace_settings(request.model_name, changes)
        return respond_when_known(settings, _settings_response)

    def _refuse_exiting(self) -> None:
        if self._engine.is_exiting:
            raise UnavailableError("Server exiting")


def respond_when_known(answer: Answer[T], respond: Callable[[T], Any]) -> Any:
    """Returns the response with the engine's answer, or a coroutine that returns it."""
    if not isinstance(answer, Coroutine):
        return respond(answer)

    async def respond_later() -> Any:
        return respond(await answer)

    return respond_later()


def _ready_as(response_class: Any) -> Callable[[bool], Any]:
    return lambda is_ready: response_class(ready=is_ready)


def _statistics_response(models: list[dict[str, Any]]) -> Any:
    response = service_pb2.ModelStatisticsResponse()
    for model in models:
        json_format.ParseDict(model, response.model_stats.add())
    return response


def _settings_response(settings: dict[str, list[str]]) -> Any:
    response = service_pb2.TraceSettingResponse()
    for name, texts in settings.items():
        response.settings[name].value.extend(texts)
    return response


def _tensors(specs: dict[str, ModelTensor]) -> list[Any]:
    return [
        service_pb2.ModelMetadataResponse.TensorMetadata(
            name=spec.name, datatype=spec.dtype.name, shape=spec.shape
        )
        for spec in specs.values()
    ]


_API = "model-repository"


class GrpcRepository:
    """Turns request messages into response messages, or into coroutines that return them."""

    def __init__(self, service: RepositoryService) -> None:
        self._service = service

    def answers(self) -> dict[str, tuple[str, Method]]:
        """Returns, for each method, its group for authorisation and the function that answers."""
        return {
            "RepositoryIndex": (_API, self.index),
            "RepositoryModelLoad": (_API, self.load),
            "RepositoryModelUnload": (_API, self.unload),
        }

    def index(self, request: Any) -> Any:
        """List the models of the server, or only the ready ones if the client asks for these."""
        check_repository(request.repository_name)
        return respond_when_known(self._service.index(ready=request.ready), _index_response)

    def load(self, request: ModelLoadRequest) -> Any:
        loading = self._service.load(request.model_name, request.overrides)
        return _respond_after(loading, service_pb2.RepositoryModelLoadResponse())

    def unload(self, request: Any) -> Any:
        check_repository(request.repository_name)
        unload_dependents = read_unload_parameters(request.parameters)
        unloading = self._service.unload(request.model_name, unload_dependents=unload_dependents)
        return _respond_after(unloading, service_pb2.RepositoryModelUnloadResponse())


def _index_response(entries: list[IndexEntry]) -> Any:
    response = service_pb2.RepositoryIndexResponse()
    for entry in entries:
        response.models.add(
            name=entry.name, version=entry.version, state=entry.state, reason=entry.reason
        )
    return response


async def _respond_after(work: Coroutine[Any, Any, None], response: Any) -> Any:
    await work
    return response


class GrpcLogSettings:
    """Turns request messages into response messages, or into coroutines that return them."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine

    def answers(self) -> dict[str, tuple[str, Method]]:
        """Returns, for the method, its group for authorisation and the function that answers."""
        return {"LogSettings": ("logging", self.log_settings)}

    def log_settings(self, request: Any) -> Any:
        """Apply the changes in the request, and report all settings."""
        settings = self._engine.change_log_settings(read_log_settings_pb(request))
        return respond_when_known(settings, log_settings_response)


_SHARED_MEMORY_API = "shared-memory"


class GrpcSharedMemory:
    """Turns request messages into response messages, or into coroutines that return them."""

    def __init__(self, shared_memory: ClientSharedMemory) -> None:
        self._shared_memory = shared_memory

    def answers(self) -> dict[str, tuple[str, Method]]:
        """Returns, for each method, its group for authorisation and the function that answers."""
        return {
            "SystemSharedMemoryStatus": (_SHARED_MEMORY_API, self.status),
            "SystemSharedMemoryRegister": (_SHARED_MEMORY_API, self.register),
            "SystemSharedMemoryUnregister": (_SHARED_MEMORY_API, self.unregister),
            "CudaSharedMemoryStatus": (_SHARED_MEMORY_API, self.cuda_status),
            "CudaSharedMemoryRegister": (_SHARED_MEMORY_API, self.cuda_register),
            "CudaSharedMemoryUnregister": (_SHARED_MEMORY_API, self.cuda_unregister),
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
