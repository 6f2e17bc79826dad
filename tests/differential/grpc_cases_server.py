# SPDX-License-Identifier: Apache-2.0
"""Calls that are not inference: health, metadata, configuration, statistics, and none at all."""

from __future__ import annotations

from typing import Any

from pytriton.base.protos import service_pb2 as pb
from tests.differential.grpc_case import GrpcCase, Observation, call


def keys_only(seen: Observation) -> Observation:
    """Of statistics the names: the numbers are each server's own."""
    message = seen.get("message", {})
    return {**seen, "message": [item["name"] for item in message.get("model_stats", [])]}


def of_config(seen: Observation) -> Observation:
    """Of a configuration what the table of models says, not what each server fills in."""
    config: dict[str, Any] = seen.get("message", {}).get("config", {})
    known = ("name", "max_batch_size", "input", "output", "version_policy")
    return {**seen, "message": {key: config[key] for key in known if key in config}}


def status_only(seen: Observation) -> Observation:
    """The status without its text."""
    return {"status": seen["status"]}


parameter = pb.ModelRepositoryParameter


def load_request(parameters: dict[str, Any]) -> Any:
    return pb.RepositoryModelLoadRequest(model_name="add_sub", parameters=parameters)


def unload_request(parameters: dict[str, Any]) -> Any:
    return pb.RepositoryModelUnloadRequest(model_name="nobody", parameters=parameters)


def load(name: str, request: Any) -> GrpcCase:
    return call(name, "RepositoryModelLoad", request)


def unload(name: str, request: Any) -> GrpcCase:
    return call(name, "RepositoryModelUnload", request)


SERVER_CASES: list[GrpcCase] = [
    call("live", "ServerLive", pb.ServerLiveRequest()),
    call("ready", "ServerReady", pb.ServerReadyRequest()),
    call("health", "/grpc.health.v1.Health/Check", b""),
    call("health of a service", "/grpc.health.v1.Health/Check", b"\x0a\x01x"),
    call("model ready", "ModelReady", pb.ModelReadyRequest(name="add_sub")),
    call("model version ready", "ModelReady", pb.ModelReadyRequest(name="add_sub", version="1")),
    call("other version ready", "ModelReady", pb.ModelReadyRequest(name="add_sub", version="7")),
    call("unknown model ready", "ModelReady", pb.ModelReadyRequest(name="nobody")),
    call("no model ready", "ModelReady", pb.ModelReadyRequest()),
    call("bad version ready", "ModelReady", pb.ModelReadyRequest(name="add_sub", version="x")),
    call("negative version ready", "ModelReady", pb.ModelReadyRequest(name="a", version="-1")),
    call("model metadata", "ModelMetadata", pb.ModelMetadataRequest(name="add_sub")),
    call("metadata without batch", "ModelMetadata", pb.ModelMetadataRequest(name="fixed")),
    call(
        "metadata of a version",
        "ModelMetadata",
        pb.ModelMetadataRequest(name="vector", version="1"),
    ),
    call("metadata of strings", "ModelMetadata", pb.ModelMetadataRequest(name="word")),
    call("metadata, unknown model", "ModelMetadata", pb.ModelMetadataRequest(name="nobody")),
    call(
        "metadata, unknown version",
        "ModelMetadata",
        pb.ModelMetadataRequest(name="word", version="9"),
    ),
    call(
        "metadata, bad version", "ModelMetadata", pb.ModelMetadataRequest(name="word", version="v")
    ),
    call("metadata, no name", "ModelMetadata", pb.ModelMetadataRequest()),
    call("config", "ModelConfig", pb.ModelConfigRequest(name="add_sub"), view=of_config),
    call("config of a stream", "ModelConfig", pb.ModelConfigRequest(name="repeat"), view=of_config),
    call("config, unknown model", "ModelConfig", pb.ModelConfigRequest(name="nobody")),
    call("config, unknown version", "ModelConfig", pb.ModelConfigRequest(name="word", version="3")),
    call("statistics", "ModelStatistics", pb.ModelStatisticsRequest(name="fixed"), view=keys_only),
    call("statistics of all", "ModelStatistics", pb.ModelStatisticsRequest(), view=keys_only),
    call("statistics, unknown", "ModelStatistics", pb.ModelStatisticsRequest(name="nobody")),
    call(
        "statistics, unknown version",
        "ModelStatistics",
        pb.ModelStatisticsRequest(name="fixed", version="5"),
    ),
    call("index", "RepositoryIndex", pb.RepositoryIndexRequest()),
    call("index of the ready", "RepositoryIndex", pb.RepositoryIndexRequest(ready=True)),
    call(
        "index of a repository", "RepositoryIndex", pb.RepositoryIndexRequest(repository_name="x")
    ),
    load("load", pb.RepositoryModelLoadRequest(model_name="add_sub")),
    load("load, unknown model", pb.RepositoryModelLoadRequest(model_name="nobody")),
    load(
        "load of a repository",
        pb.RepositoryModelLoadRequest(model_name="add_sub", repository_name="r"),
    ),
    load("load, unknown parameter", load_request({"x": parameter(string_param="y")})),
    load("load, config as bytes", load_request({"config": parameter(bytes_param=b"{}")})),
    load("load, config without a value", load_request({"config": parameter()})),
    load("load, file as text", load_request({"file:1/model.py": parameter(string_param="x")})),
    unload("unload, unknown model", unload_request({})),
    unload("unload, dependents", unload_request({"unload_dependents": parameter(bool_param=True)})),
    unload(
        "unload, dependents as a number",
        unload_request({"unload_dependents": parameter(int64_param=1)}),
    ),
    unload("unload, unknown parameter", unload_request({"x": parameter(string_param="y")})),
    unload(
        "unload of a repository",
        pb.RepositoryModelUnloadRequest(model_name="nobody", repository_name="r"),
    ),
    call("unknown method", "Nothing", b"", view=status_only),
    call("unknown service", "/nobody.Service/Nothing", b"", view=status_only),
    call("no method at all", "/", b"", view=status_only),
    call("restricted", "TraceSetting", pb.TraceSettingRequest()),
    call(
        "restricted, wrong value",
        "TraceSetting",
        pb.TraceSettingRequest(),
        metadata=(("triton-grpc-protocol-triton-access-token", "guess"),),
    ),
    call("bytes that are no message", "ModelReady", b"\x0a\xff"),
    call("text that is not UTF-8", "ModelReady", b"\x0a\x01\xff"),
]
