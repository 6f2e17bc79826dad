# SPDX-License-Identifier: Apache-2.0
"""The gRPC methods beside inference: health, metadata, settings, models and shared memory.

`pytriton.serving.server.http.management` answers the same questions over HTTP, as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf import json_format

from pytriton.base.errors import UnavailableError
from pytriton.base.protos import service_pb2
from pytriton.protocol.repository import (
    check_model_name,
    check_repository,
    read_unload_parameters,
)
from pytriton.protocol.settings import log_settings_response, read_log_settings_pb
from pytriton.serving.server.api.documents import EXTENSIONS, TRITON_VERSION
from pytriton.serving.server.api.local_client import LocalClient

if TYPE_CHECKING:
    from pytriton.base.model_spec import ModelTensor
    from pytriton.protocol.repository_pb import ModelLoadRequest
    from pytriton.serving.engine.client import Answer, EngineClient, IndexEntry
    from pytriton.serving.server.shared_memory.shared_memory import ClientSharedMemory

T = TypeVar("T")
Method = Callable[..., Any]


class ManagementMethods:
    """Turns request messages into response messages, or into coroutines that return them."""

    def __init__(
        self, engine: EngineClient, server_id: str, shared_memory: ClientSharedMemory
    ) -> None:
        self._engine = engine
        self._server_id = server_id
        self._shared_memory = shared_memory

    def answers(self) -> dict[str, tuple[str, Method]]:
        """Returns, for each method, its group for authorisation and the function that answers."""
        repository, memory = "model-repository", "shared-memory"
        return {
            "ServerLive": ("health", self._server_live),
            "ServerReady": ("health", self._server_ready),
            "ModelReady": ("health", self._model_ready),
            "ServerMetadata": ("metadata", self._server_metadata),
            "ModelMetadata": ("metadata", self._model_metadata),
            "ModelConfig": ("model-config", self._model_config),
            "ModelStatistics": ("statistics", self._model_statistics),
            "TraceSetting": ("trace", self._trace_setting),
            "LogSettings": ("logging", self._log_settings),
            "RepositoryIndex": (repository, self._index),
            "RepositoryModelLoad": (repository, self._load),
            "RepositoryModelUnload": (repository, self._unload),
            "SystemSharedMemoryStatus": (memory, self._region_status),
            "SystemSharedMemoryRegister": (memory, self._register_region),
            "SystemSharedMemoryUnregister": (memory, self._unregister_region),
            "CudaSharedMemoryStatus": (memory, self._cuda_status),
            "CudaSharedMemoryRegister": (memory, self._register_cuda),
            "CudaSharedMemoryUnregister": (memory, self._unregister_cuda),
        }

    def _refuse_when_exiting(self) -> None:
        if self._engine.is_exiting:
            raise UnavailableError("Server exiting")

    # Health

    def _server_live(self, request: Any) -> Any:
        self._refuse_when_exiting()
        return service_pb2.ServerLiveResponse(live=True)

    def _server_ready(self, request: Any) -> Any:
        self._refuse_when_exiting()
        response = service_pb2.ServerReadyResponse
        return _respond_when_known(
            self._engine.ask(LocalClient.is_ready), lambda ready: response(ready=ready)
        )

    def _model_ready(self, request: Any) -> Any:
        self._refuse_when_exiting()
        is_ready = self._engine.ask(
            LocalClient.is_model_ready, name=request.name, version=request.version
        )
        response = service_pb2.ModelReadyResponse
        return _respond_when_known(is_ready, lambda ready: response(ready=ready))

    # Documents

    def _server_metadata(self, request: Any) -> Any:
        return service_pb2.ServerMetadataResponse(
            name=self._server_id, version=TRITON_VERSION, extensions=EXTENSIONS
        )

    def _model_metadata(self, request: Any) -> Any:
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

    def _model_config(self, request: Any) -> Any:
        """Convert the JSON text for HTTP clients."""
        response = service_pb2.ModelConfigResponse()
        model = self._engine.lookup(request.name, request.version)
        json_format.Parse(model.config_json, response.config)
        return response

    def _model_statistics(self, request: Any) -> Any:
        statistics = self._engine.ask(
            LocalClient.statistics, name=request.name, version=request.version
        )
        return _respond_when_known(statistics, _statistics_response)

    # Settings: a request may change them, and all are reported

    def _trace_setting(self, request: Any) -> Any:
        changes = {name: list(setting.value) for name, setting in request.settings.items()}
        settings = self._engine.ask(
            LocalClient.change_trace_settings, model_name=request.model_name, changes=changes
        )
        return _respond_when_known(settings, _trace_settings_response)

    def _log_settings(self, request: Any) -> Any:
        settings = self._engine.ask(
            LocalClient.change_log_settings, changes=read_log_settings_pb(request)
        )
        return _respond_when_known(settings, log_settings_response)

    # Model repository

    def _index(self, request: Any) -> Any:
        check_repository(request.repository_name)
        return _respond_when_known(
            self._engine.ask(LocalClient.index, ready=request.ready), _index_response
        )

    def _load(self, request: ModelLoadRequest, patterns: Sequence[str] | None) -> Any:
        name, overrides = request
        check_model_name(name, is_path=True)
        self._refuse_when_exiting()
        loading = self._engine.ask(
            LocalClient.load,
            name=name,
            config=overrides.config,
            files=overrides.files,
            patterns=patterns,
        )
        return _respond_after(loading, service_pb2.RepositoryModelLoadResponse())

    def _unload(self, request: Any) -> Any:
        check_repository(request.repository_name)
        unload_dependents = read_unload_parameters(request.parameters)
        check_model_name(request.model_name, is_path=False)
        self._refuse_when_exiting()
        unloading = self._engine.ask(
            LocalClient.unload,
            name=request.model_name,
            unload_dependents=unload_dependents,
        )
        return _respond_after(unloading, service_pb2.RepositoryModelUnloadResponse())

    # Shared memory of clients: answered when all front ends know the change

    def _region_status(self, request: Any) -> Any:
        response = service_pb2.SystemSharedMemoryStatusResponse()
        for region in self._shared_memory.status(request.name):
            status = response.regions[region.name]
            status.name = region.name
            status.key = region.key
            status.offset = region.offset
            status.byte_size = region.byte_size
        return response

    def _register_region(self, request: Any) -> Any:
        self._shared_memory.check_allowed()
        work = self._shared_memory.register(
            request.name, request.key, request.offset, request.byte_size
        )
        response = service_pb2.SystemSharedMemoryRegisterResponse()
        return _respond_when_known(work, lambda _: response)

    def _unregister_region(self, request: Any) -> Any:
        self._shared_memory.check_allowed()
        work = self._shared_memory.unregister(request.name)
        response = service_pb2.SystemSharedMemoryUnregisterResponse()
        return _respond_when_known(work, lambda _: response)

    def _cuda_status(self, request: Any) -> Any:
        response = service_pb2.CudaSharedMemoryStatusResponse()
        for region in self._shared_memory.cuda_status(request.name):
            status = response.regions[region.name]
            status.name = region.name
            status.device_id = region.device
            status.byte_size = region.byte_size
        return response

    def _register_cuda(self, request: Any) -> Any:
        self._shared_memory.check_allowed()
        work = self._shared_memory.register_cuda(
            request.name, request.raw_handle, request.device_id, request.byte_size
        )
        response = service_pb2.CudaSharedMemoryRegisterResponse()
        return _respond_when_known(work, lambda _: response)

    def _unregister_cuda(self, request: Any) -> Any:
        self._shared_memory.check_allowed()
        work = self._shared_memory.unregister_cuda(request.name)
        response = service_pb2.CudaSharedMemoryUnregisterResponse()
        return _respond_when_known(work, lambda _: response)


def _respond_when_known(answer: Answer[T], respond: Callable[[T], Any]) -> Any:
    """Returns the response with the engine's answer, or a coroutine that returns it."""
    if not isinstance(answer, Coroutine):
        return respond(answer)

    async def respond_later() -> Any:
        return respond(await answer)

    return respond_later()


async def _respond_after(work: Coroutine[Any, Any, None], response: Any) -> Any:
    await work
    return response


def _statistics_response(models: list[dict[str, Any]]) -> Any:
    response = service_pb2.ModelStatisticsResponse()
    for model in models:
        json_format.ParseDict(model, response.model_stats.add())
    return response


def _trace_settings_response(settings: dict[str, list[str]]) -> Any:
    response = service_pb2.TraceSettingResponse()
    for name, texts in settings.items():
        response.settings[name].value.extend(texts)
    return response


def _index_response(entries: list[IndexEntry]) -> Any:
    response = service_pb2.RepositoryIndexResponse()
    for entry in entries:
        response.models.add(
            name=entry.name, version=entry.version, state=entry.state, reason=entry.reason
        )
    return response


def _tensors(specs: dict[str, ModelTensor]) -> list[Any]:
    return [
        service_pb2.ModelMetadataResponse.TensorMetadata(
            name=spec.name, datatype=spec.dtype.name, shape=spec.shape
        )
        for spec in specs.values()
    ]
