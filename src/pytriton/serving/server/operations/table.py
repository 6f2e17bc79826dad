# SPDX-License-Identifier: Apache-2.0
"""The table of operations, and what is particular about each: its readers, writers and answers.

What the core answers is in `LocalClient`; texts and messages of more than a few lines are read and
written in `pytriton.protocol`. The OpenAPI document has the order of this table.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format

from pytriton.base.errors import InvalidArgumentError
from pytriton.base.protos import model_config_pb2
from pytriton.protocol.repository import (
    LoadOverrides,
    check_model_name,
    check_repository,
    read_index,
    read_unload,
    read_unload_parameters,
)
from pytriton.protocol.repository_pb import read_load_request
from pytriton.protocol.settings import (
    encode_trace_settings,
    log_settings_fields,
    read_log_settings,
    read_log_settings_pb,
    read_trace_settings,
)
from pytriton.protocol.shared_memory import read_cuda_region, read_system_region
from pytriton.serving.server.access.decisions import (
    UNLOADS_OTHERS,
    Scope,
    patterns_of,
    sees_all,
    visible,
)
from pytriton.serving.server.api import documents
from pytriton.serving.server.api.authorization import RECORDING
from pytriton.serving.server.api.local_client import LocalClient
from pytriton.serving.server.operations.operation import (
    GET,
    POST,
    Desk,
    Grpc,
    Http,
    HttpPath,
    JsonRequest,
    Operation,
    core,
)

if TYPE_CHECKING:
    from pytriton.protocol.repository_pb import ModelLoadRequest
    from pytriton.serving.engine.client import IndexEntry
    from pytriton.serving.server.access.control import Grant

_TEXT = b"text/plain"
_MODEL = "/v2/models/{model}[/versions/{version}]"
_REPOSITORY = "/v2/repository[/{repository}]"
_SYSTEM = "/v2/systemsharedmemory[/region/{region}]"
_CUDA = "/v2/cudasharedmemory[/region/{region}]"


# What several have


def _no_body(_: Any) -> bytes:
    return b""


def _model_in_path(request: JsonRequest) -> dict[str, Any]:
    return {"name": request.model, "version": request.version}


def _model_in_message(request: Any) -> dict[str, Any]:
    return {"name": request.name, "version": request.version}


def _members(items: Iterable[Any], *names: str) -> list[dict[str, Any]]:
    return [{name: getattr(each, name) for name in names} for each in items]


# Health


def _readiness(grant: Grant | None, problem: str) -> str:
    """Returns the text about a server that is not ready; the reason names models."""
    reason = f": {problem}" if sees_all(grant) else ""
    return problem and f"Server is not ready{reason}"


def _refuse_unready(text: str) -> bytes:
    if text:
        raise InvalidArgumentError(text)
    return b""


def _refuse_unready_model(is_ready: bool) -> bytes:
    return _refuse_unready("" if is_ready else "Model version not ready")


# Documents


def _model_metadata(desk: Desk, name: str, version: str) -> dict[str, Any]:
    model = desk.engine.lookup(name, version)
    versions = [model.spec.version] if version else desk.engine.ready_versions(name)
    return documents.model_metadata(model.spec, versions)


def _model_config(desk: Desk, name: str, version: str) -> bytes:
    return desk.engine.lookup(name, version).config_json


def _config_fields(config_json: bytes) -> dict[str, Any]:
    return {"config": json_format.Parse(config_json, model_config_pb2.ModelConfig())}


def _shown_statistics(grant: Grant | None, models: list[dict[str, Any]]) -> dict[str, Any]:
    return documents.model_statistics(visible(grant, models, itemgetter("name")))


# Settings: a POST changes them, and all are reported


def _trace_changes(request: JsonRequest) -> dict[str, Any]:
    changes = read_trace_settings(request.body()) if request.is_post else {}
    return {"model_name": request.model, "changes": changes}


def _trace_changes_pb(request: Any) -> dict[str, Any]:
    changes = {name: list(setting.value) for name, setting in request.settings.items()}
    return {"model_name": request.model_name, "changes": changes}


def _log_changes(request: JsonRequest) -> dict[str, Any]:
    return {"changes": read_log_settings(request.body()) if request.is_post else {}}


# Recordings of requests


def _recording(action: str) -> Callable[[JsonRequest], dict[str, Any]]:
    return lambda request: {"action": action, "body": bytes(request.body())}


def _begun_recording(request: JsonRequest) -> dict[str, Any]:
    return _recording("start" if request.is_post else "status")(request)


# Model repository


def _read_index(request: JsonRequest) -> dict[str, Any]:
    check_repository(request.repository)
    return {"ready": read_index(request.body())}


def _read_index_pb(request: Any) -> dict[str, Any]:
    check_repository(request.repository_name)
    return {"ready": request.ready}


def _shown_index(grant: Grant | None, entries: list[IndexEntry]) -> list[IndexEntry]:
    return visible(grant, entries, attrgetter("name"))


def _index_fields(entries: list[IndexEntry]) -> dict[str, Any]:
    return {"models": _members(entries, "name", "version", "state", "reason")}


def _read_load(request: JsonRequest) -> dict[str, Any]:
    check_repository(request.repository)
    return {"name": request.model, "overrides": request.files()}


def _read_load_pb(request: ModelLoadRequest) -> dict[str, Any]:
    return {"name": request.model_name, "overrides": request.overrides}


def _load(
    desk: Desk, name: str, overrides: LoadOverrides | Callable[[], Any]
) -> Coroutine[Any, Any, None]:
    if not isinstance(overrides, LoadOverrides):
        return _load_later(desk, name, overrides)
    check_model_name(name, is_path=True)
    desk.refuse_when_exiting()
    patterns = patterns_of(None if desk.grant is None else desk.grant.principal)
    config, files = overrides
    return desk.engine.ask(
        LocalClient.load, name=name, config=config, files=files, patterns=patterns
    )


async def _load_later(desk: Desk, name: str, read: Callable[[], Any]) -> None:
    await _load(desk, name, await read())


def _read_unload(request: JsonRequest) -> dict[str, Any]:
    check_repository(request.repository)
    return {"name": request.model, "unload_dependents": read_unload(request.body())}


def _read_unload_pb(request: Any) -> dict[str, Any]:
    check_repository(request.repository_name)
    unload_dependents = read_unload_parameters(request.parameters)
    return {"name": request.model_name, "unload_dependents": unload_dependents}


def _unload(desk: Desk, name: str, *, unload_dependents: bool) -> Coroutine[Any, Any, None]:
    if unload_dependents and not sees_all(desk.grant):
        raise InvalidArgumentError(UNLOADS_OTHERS)
    check_model_name(name, is_path=False)
    desk.refuse_when_exiting()
    return desk.engine.ask(LocalClient.unload, name=name, unload_dependents=unload_dependents)


def _unloaded(request: Any) -> str | Scope:
    """Returns the model of a message; the models that depend on it may be any."""
    name = "unload_dependents"
    unloads_others = name in request.parameters and request.parameters[name].bool_param
    return Scope.ALL if unloads_others else request.model_name


# Shared memory of clients: answered when all front ends know a change


def _is_allowed(desk: Desk) -> None:
    desk.shared_memory.check_allowed()


def _region(request: JsonRequest) -> dict[str, Any]:
    return {"name": request.region}


def _region_pb(request: Any) -> dict[str, Any]:
    return {"name": request.name}


def _registration(kind: str, read: Callable[[Any], Any]) -> Callable[[JsonRequest], dict[str, Any]]:
    def read_named(request: JsonRequest) -> dict[str, Any]:
        if not request.region:  # only HTTP checks this, as in Triton
            raise InvalidArgumentError(
                f"'region name' is necessary to register {kind} shared memory region"
            )
        return {"name": request.region, **read(request.body())._asdict()}

    return read_named


def _system_registration_pb(request: Any) -> dict[str, Any]:
    return _members([request], "name", "key", "offset", "byte_size")[0]


def _cuda_registration_pb(request: Any) -> dict[str, Any]:
    handle, device = request.raw_handle, request.device_id
    return {
        "name": request.name,
        "handle": handle,
        "device": device,
        "byte_size": request.byte_size,
    }


def _system_regions(desk: Desk, name: str) -> list[dict[str, Any]]:
    return _members(desk.shared_memory.status(name), "name", "key", "offset", "byte_size")


def _cuda_regions(desk: Desk, name: str) -> list[dict[str, Any]]:
    return [
        {"name": each.name, "device_id": each.device, "byte_size": each.byte_size}
        for each in desk.shared_memory.cuda_status(name)
    ]


def _by_name(regions: list[dict[str, Any]]) -> dict[str, Any]:
    return {"regions": {each["name"]: each for each in regions}}


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "server_metadata",
        "metadata",
        lambda desk: documents.server_metadata(desk.server_id),
        Scope.NONE,
        http=Http((HttpPath("/v2", "The server's name and extensions", "server"),)),
        grpc=Grpc("ServerMetadata"),
    ),
    Operation(
        "model_metadata",
        "metadata",
        _model_metadata,
        http=Http(
            (HttpPath(_MODEL, "Inputs and outputs of a model", "model metadata"),),
            read=_model_in_path,
        ),
        grpc=Grpc("ModelMetadata", _model_in_message, subject=attrgetter("name")),
    ),
    Operation(
        "model_config",
        "model-config",
        _model_config,
        http=Http(
            (HttpPath(f"{_MODEL}/config", "Configuration of a model", "model config"),),
            read=_model_in_path,
            write=bytes,
        ),
        grpc=Grpc("ModelConfig", _model_in_message, _config_fields, attrgetter("name")),
    ),
    Operation(
        "model_ready",
        "health",
        core(LocalClient.is_model_ready),
        http=Http(
            (HttpPath(f"{_MODEL}/ready", "Whether a model is ready", "model ready"),),
            read=_model_in_path,
            write=_refuse_unready_model,
            content_type=_TEXT,
        ),
        grpc=Grpc(
            "ModelReady",
            _model_in_message,
            lambda is_ready: {"ready": is_ready},
            attrgetter("name"),
            check=Desk.refuse_when_exiting,  # only here, as in Triton
        ),
    ),
    Operation(
        "model_statistics",
        "statistics",
        core(LocalClient.statistics),
        Scope.FILTERED,
        shown=_shown_statistics,
        http=Http(
            (
                HttpPath("/v2/models/stats", "Statistics of all models", "statistics"),
                HttpPath(f"{_MODEL}/stats", "Statistics of a model", "model stats"),
            ),
            read=_model_in_path,
        ),
        grpc=Grpc(
            "ModelStatistics",
            _model_in_message,
            subject=lambda request: request.name or Scope.FILTERED,
        ),
    ),
    Operation(
        "repository_index",
        "model-repository",
        core(LocalClient.index),
        Scope.FILTERED,
        shown=_shown_index,
        http=Http(
            (
                HttpPath(
                    f"{_REPOSITORY}/index",
                    "All models and their states",
                    "index",
                    {"type": "array"},
                ),
            ),
            POST,
            _read_index,
            documents.repository_index,
        ),
        grpc=Grpc("RepositoryIndex", _read_index_pb, _index_fields),
    ),
    Operation(
        "repository_load",
        "model-repository",
        _load,
        has_files=True,
        http=Http((HttpPath(f"{_REPOSITORY}/models/{{model}}/load"),), POST, _read_load),
        grpc=Grpc(
            "RepositoryModelLoad",
            _read_load_pb,
            subject=attrgetter("model_name"),
            parse=read_load_request,
        ),
    ),
    Operation(
        "repository_unload",
        "model-repository",
        _unload,
        http=Http((HttpPath(f"{_REPOSITORY}/models/{{model}}/unload"),), POST, _read_unload),
        grpc=Grpc("RepositoryModelUnload", _read_unload_pb, subject=_unloaded),
    ),
    Operation(
        "live",
        "health",
        lambda _: True,
        Scope.NONE,
        check=Desk.refuse_when_exiting,
        http=Http(
            (HttpPath("/v2/health/live", "Whether the server is live", "live", None),),
            write=_no_body,
            content_type=_TEXT,
        ),
        grpc=Grpc("ServerLive", write=lambda is_live: {"live": is_live}),
    ),
    Operation(
        "ready",
        "health",
        core(LocalClient.problem),
        Scope.NONE,
        check=Desk.refuse_when_exiting,
        shown=_readiness,
        http=Http(
            (HttpPath("/v2/health/ready", "Whether the server is ready", "ready", None),),
            write=_refuse_unready,
            content_type=_TEXT,
        ),
        grpc=Grpc("ServerReady", write=lambda text: {"ready": not text}),
    ),
    Operation(
        "trace_setting",
        "trace",
        core(LocalClient.change_trace_settings),
        http=Http(
            (HttpPath("/v2/trace/setting"), HttpPath("/v2/models/{model}/trace/setting")),
            GET | POST,
            _trace_changes,
            encode_trace_settings,
        ),
        grpc=Grpc(
            "TraceSetting",
            _trace_changes_pb,
            lambda settings: {"settings": {name: {"value": settings[name]} for name in settings}},
            lambda request: request.model_name or Scope.ALL,
        ),
    ),
    Operation(
        "logging",
        "logging",
        core(LocalClient.change_log_settings),
        Scope.NONE,
        http=Http((HttpPath("/v2/logging"),), GET | POST, _log_changes),
        grpc=Grpc(
            "LogSettings",
            lambda request: {"changes": read_log_settings_pb(request)},
            log_settings_fields,
        ),
    ),
    # Ours; `Authorization` refuses them unless the server has a token.
    Operation(
        "recording",
        RECORDING,
        core(LocalClient.record),
        http=Http((HttpPath(f"/v2/{RECORDING}"),), GET | POST, _begun_recording),
    ),
    Operation(
        "recording_fetch",
        RECORDING,
        core(LocalClient.record),
        http=Http(
            (HttpPath(f"/v2/{RECORDING}/fetch"),),
            POST,
            _recording("fetch"),
            bytes,
            b"application/octet-stream",
        ),
    ),
    Operation(
        "recording_stop",
        RECORDING,
        core(LocalClient.record),
        http=Http((HttpPath(f"/v2/{RECORDING}/stop"),), POST, _recording("stop")),
    ),
    Operation(
        "system_memory_status",
        "shared-memory",
        _system_regions,
        Scope.NONE,
        http=Http((HttpPath(f"{_SYSTEM}/status"),), read=_region),
        grpc=Grpc("SystemSharedMemoryStatus", _region_pb, _by_name),
    ),
    Operation(
        "system_memory_register",
        "shared-memory",
        lambda desk, **region: desk.shared_memory.register(**region),
        Scope.NONE,
        check=_is_allowed,
        http=Http(
            (HttpPath(f"{_SYSTEM}/register"),), POST, _registration("system", read_system_region)
        ),
        grpc=Grpc("SystemSharedMemoryRegister", _system_registration_pb),
    ),
    Operation(
        "system_memory_unregister",
        "shared-memory",
        lambda desk, name: desk.shared_memory.unregister(name),
        Scope.NONE,
        check=_is_allowed,
        http=Http((HttpPath(f"{_SYSTEM}/unregister"),), POST, _region),
        grpc=Grpc("SystemSharedMemoryUnregister", _region_pb),
    ),
    Operation(
        "cuda_memory_status",
        "shared-memory",
        _cuda_regions,
        Scope.NONE,
        http=Http((HttpPath(f"{_CUDA}/status"),), read=_region),
        grpc=Grpc("CudaSharedMemoryStatus", _region_pb, _by_name),
    ),
    Operation(
        "cuda_memory_register",
        "shared-memory",
        lambda desk, **region: desk.shared_memory.register_cuda(**region),
        Scope.NONE,
        check=_is_allowed,
        http=Http((HttpPath(f"{_CUDA}/register"),), POST, _registration("cuda", read_cuda_region)),
        grpc=Grpc("CudaSharedMemoryRegister", _cuda_registration_pb),
    ),
    Operation(
        "cuda_memory_unregister",
        "shared-memory",
        lambda desk, name: desk.shared_memory.unregister_cuda(name),
        Scope.NONE,
        check=_is_allowed,
        http=Http((HttpPath(f"{_CUDA}/unregister"),), POST, _region),
        grpc=Grpc("CudaSharedMemoryUnregister", _region_pb),
    ),
)
