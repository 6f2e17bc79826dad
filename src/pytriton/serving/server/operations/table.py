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
    HttpPath,
    JsonRequest,
    Operation,
    OverGrpc,
    OverHttp,
    core,
)
from pytriton.serving.server.shared_memory.shared_memory import LocalRegions

if TYPE_CHECKING:
    from pytriton.serving.engine.client import Answer, IndexEntry
    from pytriton.serving.server.access.control import Grant

_TEXT = b"text/plain"
_BINARY = b"application/octet-stream"
_MODEL = "/v2/models/{model}[/versions/{version}]"
_REPOSITORY = "/v2/repository[/{repository}]"
_SYSTEM = "/v2/systemsharedmemory[/region/{region}]"
_CUDA = "/v2/cudasharedmemory[/region/{region}]"


def _members(item: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(item, name) for name in names}


# Health


def _readiness(grant: Grant | None, problem: str) -> str:
    """Returns the text about a server that is not ready; the reason names models."""
    reason = f": {problem}" if sees_all(grant) else ""
    return problem and f"Server is not ready{reason}"


def _refuse_unready(text: str) -> bytes:
    if text:
        raise InvalidArgumentError(text)
    return b""


# Documents


def _model_metadata(desk: Desk, name: str, version: str) -> dict[str, Any]:
    model = desk.engine.lookup(name, version)
    versions = [model.spec.version] if version else desk.engine.ready_versions(name)
    return documents.model_metadata(model.spec, versions)


def _config_fields(config_json: bytes) -> dict[str, Any]:
    return {"config": json_format.Parse(config_json, model_config_pb2.ModelConfig())}


def _shown_statistics(grant: Grant | None, models: list[dict[str, Any]]) -> dict[str, Any]:
    return documents.model_statistics(visible(grant, models, itemgetter("name")))


# Settings: a POST changes them, and all are reported


def _trace_changes(request: JsonRequest) -> dict[str, Any]:
    changes = read_trace_settings(request.body()) if request.is_post else {}
    return {"model_name": request.name, "changes": changes}


def _trace_changes_pb(request: Any) -> dict[str, Any]:
    changes = {name: list(setting.value) for name, setting in request.settings.items()}
    return {"model_name": request.model_name, "changes": changes}


def _trace_fields(settings: dict[str, list[str]]) -> dict[str, Any]:
    return {"settings": {name: {"value": texts} for name, texts in settings.items()}}


def _log_changes(request: JsonRequest) -> dict[str, Any]:
    return {"changes": read_log_settings(request.body()) if request.is_post else {}}


# Recordings of requests


def _recording(action: str, of_get: str = "") -> Callable[[JsonRequest], dict[str, Any]]:
    return lambda request: {
        "action": action if request.is_post else of_get,
        "body": bytes(request.body()),
    }


# Model repository


def _shown_index(grant: Grant | None, entries: list[IndexEntry]) -> list[IndexEntry]:
    return visible(grant, entries, attrgetter("name"))


def _index_fields(entries: list[IndexEntry]) -> dict[str, Any]:
    return {"models": [_members(e, ("name", "version", "state", "reason")) for e in entries]}


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


def _unload(desk: Desk, name: str, *, unload_dependents: bool) -> Coroutine[Any, Any, None]:
    if unload_dependents and not sees_all(desk.grant):
        raise InvalidArgumentError(UNLOADS_OTHERS)
    check_model_name(name, is_path=False)
    desk.refuse_when_exiting()
    return desk.engine.ask(LocalClient.unload, name=name, unload_dependents=unload_dependents)


def _read_unload(request: JsonRequest) -> dict[str, Any]:
    return {"name": request.name, "unload_dependents": read_unload(request.body())}


def _read_unload_pb(request: Any) -> dict[str, Any]:
    unload_dependents = read_unload_parameters(request.parameters)
    return {"name": request.model_name, "unload_dependents": unload_dependents}


def _unloaded(request: Any) -> str | Scope:
    """Returns the model of a message; the models that depend on it may be any."""
    name = "unload_dependents"
    unloads_others = name in request.parameters and request.parameters[name].bool_param
    return Scope.ALL if unloads_others else request.model_name


# Shared memory of clients: answered when all front ends know a change


def _regions(method: Callable[..., Answer[None]]) -> Callable[..., Answer[None]]:
    return lambda desk, **region: desk.shared_memory.control.ask(method, **region)


def _is_allowed(desk: Desk) -> None:
    desk.shared_memory.check_allowed()


def _registration(kind: str, read: Callable[[Any], Any]) -> Callable[[JsonRequest], dict[str, Any]]:
    def read_named(request: JsonRequest) -> dict[str, Any]:
        if not request.name:  # only HTTP checks this, as in Triton
            raise InvalidArgumentError(
                f"'region name' is necessary to register {kind} shared memory region"
            )
        return {"name": request.name, **read(request.body())._asdict()}

    return read_named


def _cuda_registration_pb(request: Any) -> dict[str, Any]:
    place = {"handle": request.raw_handle, "device": request.device_id}
    return {"name": request.name, **place, "byte_size": request.byte_size}


def _system_regions(desk: Desk, name: str) -> list[dict[str, Any]]:
    members = ("name", "key", "offset", "byte_size")
    return [_members(region, members) for region in desk.shared_memory.table.system_regions(name)]


def _cuda_regions(desk: Desk, name: str) -> list[dict[str, Any]]:
    return [
        {"name": each.name, "device_id": each.device, "byte_size": each.byte_size}
        for each in desk.shared_memory.table.cuda_regions(name)
    ]


def _by_name(regions: list[dict[str, Any]]) -> dict[str, Any]:
    return {"regions": {each["name"]: each for each in regions}}


_OF_MODEL = attrgetter("name")  # what a right to use such a message has to cover

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "server_metadata", "metadata", Scope.NONE,
        lambda desk: documents.server_metadata(desk.server_id),
        http=OverHttp((HttpPath("/v2", "The server's name and extensions", "server"),)),
        grpc=OverGrpc("ServerMetadata"),
    ),
    Operation(
        "model_metadata", "metadata", Scope.ALL, _model_metadata, ("name", "version"),
        http=OverHttp((HttpPath(_MODEL, "Inputs and outputs of a model", "model metadata"),)),
        grpc=OverGrpc("ModelMetadata", subject=_OF_MODEL),
    ),
    Operation(
        "model_config", "model-config", Scope.ALL,
        lambda desk, name, version: desk.engine.lookup(name, version).config_json,
        ("name", "version"),
        http=OverHttp(
            (HttpPath(f"{_MODEL}/config", "Configuration of a model", "model config"),),
            write=bytes,
        ),
        grpc=OverGrpc("ModelConfig", write=_config_fields, subject=_OF_MODEL),
    ),
    Operation(
        "model_ready", "health", Scope.ALL, core(LocalClient.is_model_ready), ("name", "version"),
        http=OverHttp(
            (HttpPath(f"{_MODEL}/ready", "Whether a model is ready", "model ready"),),
            write=lambda ready: _refuse_unready("" if ready else "Model version not ready"),
            content_type=_TEXT,
        ),
        grpc=OverGrpc(
            "ModelReady", write=lambda ready: {"ready": ready}, subject=_OF_MODEL,
            check=Desk.refuse_when_exiting,  # only here, as in Triton
        ),
    ),
    Operation(
        "model_statistics", "statistics", Scope.FILTERED, core(LocalClient.statistics),
        ("name", "version"),
        http=OverHttp((
            HttpPath("/v2/models/stats", "Statistics of all models", "statistics"),
            HttpPath(f"{_MODEL}/stats", "Statistics of a model", "model stats"),
        )),
        grpc=OverGrpc("ModelStatistics", subject=lambda request: request.name or Scope.FILTERED),
        shown=_shown_statistics,
    ),
    Operation(
        "repository_index", "model-repository", Scope.FILTERED, core(LocalClient.index), ("ready",),
        http=OverHttp(
            (HttpPath(
                f"{_REPOSITORY}/index", "All models and their states", "index", {"type": "array"}
            ),),
            POST, lambda request: {"ready": read_index(request.body())}, documents.repository_index,
        ),
        grpc=OverGrpc("RepositoryIndex", write=_index_fields),
        shown=_shown_index,
    ),
    Operation(
        "repository_load", "model-repository", Scope.ALL, _load, has_files=True,
        http=OverHttp(
            (HttpPath(f"{_REPOSITORY}/models/{{model}}/load"),), POST,
            lambda request: {"name": request.name, "overrides": request.files()},
        ),
        grpc=OverGrpc(
            "RepositoryModelLoad",
            lambda request: {"name": request.model_name, "overrides": request.overrides},
            subject=attrgetter("model_name"), parse=read_load_request,
        ),
    ),
    Operation(
        "repository_unload", "model-repository", Scope.ALL, _unload,
        http=OverHttp((HttpPath(f"{_REPOSITORY}/models/{{model}}/unload"),), POST, _read_unload),
        grpc=OverGrpc("RepositoryModelUnload", _read_unload_pb, subject=_unloaded),
    ),
    Operation(
        "live", "health", Scope.NONE, lambda _: True,
        http=OverHttp(
            (HttpPath("/v2/health/live", "Whether the server is live", "live", None),),
            write=lambda _: b"", content_type=_TEXT,
        ),
        grpc=OverGrpc("ServerLive", write=lambda is_live: {"live": is_live}),
        check=Desk.refuse_when_exiting,
    ),
    Operation(
        "ready", "health", Scope.NONE, core(LocalClient.problem),
        http=OverHttp(
            (HttpPath("/v2/health/ready", "Whether the server is ready", "ready", None),),
            write=_refuse_unready, content_type=_TEXT,
        ),
        grpc=OverGrpc("ServerReady", write=lambda text: {"ready": not text}),
        check=Desk.refuse_when_exiting, shown=_readiness,
    ),
    Operation(
        "trace_setting", "trace", Scope.ALL, core(LocalClient.change_trace_settings),
        http=OverHttp(
            (HttpPath("/v2/trace/setting"), HttpPath("/v2/models/{model}/trace/setting")),
            GET | POST, _trace_changes, encode_trace_settings,
        ),
        grpc=OverGrpc(
            "TraceSetting", _trace_changes_pb, _trace_fields,
            lambda request: request.model_name or Scope.ALL,
        ),
    ),
    Operation(
        "logging", "logging", Scope.NONE, core(LocalClient.change_log_settings),
        http=OverHttp((HttpPath("/v2/logging"),), GET | POST, _log_changes),
        grpc=OverGrpc(
            "LogSettings", lambda request: {"changes": read_log_settings_pb(request)},
            log_settings_fields,
        ),
    ),
    # Ours; `Authorization` refuses them unless the server has a token.
    Operation(
        "recording", RECORDING, Scope.ALL, core(LocalClient.record),
        http=OverHttp((HttpPath("/v2/recording"),), GET | POST, _recording("start", "status")),
    ),
    Operation(
        "recording_fetch", RECORDING, Scope.ALL, core(LocalClient.record),
        http=OverHttp(
            (HttpPath("/v2/recording/fetch"),), POST, _recording("fetch"), bytes, _BINARY
        ),
    ),
    Operation(
        "recording_stop", RECORDING, Scope.ALL, core(LocalClient.record),
        http=OverHttp((HttpPath("/v2/recording/stop"),), POST, _recording("stop")),
    ),
    Operation(
        "system_memory_status", "shared-memory", Scope.NONE, _system_regions, ("name",),
        http=OverHttp((HttpPath(f"{_SYSTEM}/status"),)),
        grpc=OverGrpc("SystemSharedMemoryStatus", write=_by_name),
    ),
    Operation(
        "system_memory_register", "shared-memory", Scope.NONE, _regions(LocalRegions.register),
        ("name", "key", "offset", "byte_size"),
        http=OverHttp(
            (HttpPath(f"{_SYSTEM}/register"),), POST, _registration("system", read_system_region)
        ),
        grpc=OverGrpc("SystemSharedMemoryRegister"),
        check=_is_allowed,
    ),
    Operation(
        "system_memory_unregister", "shared-memory", Scope.NONE,
        _regions(LocalRegions.unregister), ("name",),
        http=OverHttp((HttpPath(f"{_SYSTEM}/unregister"),), POST),
        grpc=OverGrpc("SystemSharedMemoryUnregister"),
        check=_is_allowed,
    ),
    Operation(
        "cuda_memory_status", "shared-memory", Scope.NONE, _cuda_regions, ("name",),
        http=OverHttp((HttpPath(f"{_CUDA}/status"),)),
        grpc=OverGrpc("CudaSharedMemoryStatus", write=_by_name),
    ),
    Operation(
        "cuda_memory_register", "shared-memory", Scope.NONE, _regions(LocalRegions.register_cuda),
        http=OverHttp(
            (HttpPath(f"{_CUDA}/register"),), POST, _registration("cuda", read_cuda_region)
        ),
        grpc=OverGrpc("CudaSharedMemoryRegister", _cuda_registration_pb),
        check=_is_allowed,
    ),
    Operation(
        "cuda_memory_unregister", "shared-memory", Scope.NONE,
        _regions(LocalRegions.unregister_cuda), ("name",),
        http=OverHttp((HttpPath(f"{_CUDA}/unregister"),), POST),
        grpc=OverGrpc("CudaSharedMemoryUnregister"),
        check=_is_allowed,
    ),
)  # fmt: skip
