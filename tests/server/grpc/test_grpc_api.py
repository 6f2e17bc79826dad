# SPDX-License-Identifier: Apache-2.0
"""Which call answers which method, who may use it, and the answers that need no model."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pb2

from pytriton.base.protos import service_pb2
from pytriton.protocol.grpc import GrpcStatus
from pytriton.serving.engine.config import (
    config_from_dict,
    config_to_json,
    normalise_config,
    spec_from_config,
)
from pytriton.serving.engine.engine import Engine
from pytriton.serving.engine.model import Model
from pytriton.serving.server.api.authorization import RestrictedGroup
from pytriton.serving.server.binding.bound_control import BoundControl
from pytriton.serving.server.grpc.reflection import PACKAGES, ReflectionService
from pytriton.serving.server.options.server_options import KeepaliveOptions, ServerOptions
from tests.fakes import FakeClock
from tests.fakes import FakeLoop as EngineLoop
from tests.server.grpc_fakes import SERVICE, GrpcClient, infer_request

HEADER = "triton-grpc-protocol-token"
CONFIG = {
    "name": "real",
    "backend": "python",
    "max_batch_size": 8,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [2, -1]}],
    "output": [{"name": "y", "data_type": "TYPE_STRING", "dims": [1]}],
}


@pytest.fixture
def client():
    """A client of a server with one real model, which is ready."""
    config = normalise_config(config_from_dict(CONFIG))
    model = Model(
        spec_from_config(config, 1),
        EngineLoop(FakeClock()),
        config_json=config_to_json(config),
        is_bound=True,
    )
    engine = Engine()
    engine.add(model)
    engine.set_ready(model)
    return GrpcClient(engine=engine, control=BoundControl(engine, None))


def ask(client, method, **fields):
    """The response to a call that succeeds."""
    request = getattr(service_pb2, f"{method}Request")(**fields)
    response = client.response(client.call(method, request.SerializeToString()))
    assert response.status == "0", response.text
    (message,) = response.messages
    return getattr(service_pb2, f"{method}Response").FromString(message)


def refusal(client, method, message=b"", *fields):
    response = client.response(client.call(method, message, *fields))
    assert response.messages == []
    return GrpcStatus(int(response.status)), response.text


def test_health_methods_ask_the_engine(client):
    assert ask(client, "ServerLive").live
    assert ask(client, "ServerReady").ready
    assert ask(client, "ModelReady", name="real", version="1").ready
    assert not ask(client, "ModelReady", name="nobody").ready


@pytest.mark.parametrize("method", ["ServerLive", "ServerReady", "ModelReady"])
def test_exiting_server_says_so(client, method):
    client.engine.refuse()

    assert refusal(client, method) == (GrpcStatus.UNAVAILABLE, "Server exiting")


def test_metadata_describe_server_and_model(client):
    server = ask(client, "ServerMetadata")
    model = ask(client, "ModelMetadata", name="real")

    assert server.name == "triton"
    assert "statistics" in server.extensions
    assert list(model.versions) == ["1"]
    assert [(t.name, t.datatype, list(t.shape)) for t in model.inputs] == [
        ("x", "FP32", [-1, 2, -1])
    ]
    assert [(t.name, t.datatype, list(t.shape)) for t in model.outputs] == [("y", "BYTES", [-1, 1])]


def test_configuration_is_the_models(client):
    config = ask(client, "ModelConfig", name="real").config

    assert config.max_batch_size == 8
    assert list(config.input[0].dims) == [2, -1]
    assert config.version_policy.latest.num_versions == 1


def test_statistics_and_index_list_the_models(client):
    statistics = ask(client, "ModelStatistics").model_stats
    index = ask(client, "RepositoryIndex", ready=True).models

    assert [(item.name, item.version, item.inference_count) for item in statistics] == [
        ("real", "1", 0)
    ]
    assert [(item.name, item.version, item.state) for item in index] == [("real", "1", "READY")]


def test_every_method_of_the_service_is_known(client):
    service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    unknown = []
    for method in service.methods:
        stream = client.call(method.name)
        if "unknown method" in client.response(stream).text:
            unknown.append(method.name)

    assert unknown == []


@pytest.mark.parametrize("path", ["/", "/x", f"{SERVICE}/", f"{SERVICE}/modelinfer", "/a/b/c"])
def test_unknown_methods_are_unimplemented(client, path):
    assert refusal(client, path) == (GrpcStatus.UNIMPLEMENTED, f"unknown method {path}")


def test_request_that_is_not_grpc_gets_an_http_status(client):
    get = client.open("ServerLive", verb="GET", end_stream=True)
    html = client.open("ServerLive", content_type="text/html")

    assert client.response(get).head[":status"] == "405"
    assert client.response(html).head[":status"] == "415"


def test_unreadable_message_is_refused(client):
    assert refusal(client, "ModelReady", b"\xff") == (
        GrpcStatus.INTERNAL,
        "Unable to parse request",
    )


@pytest.mark.parametrize(
    "api, method",
    [
        ("health", "ServerLive"),
        ("health", "/grpc.health.v1.Health/Check"),
        ("metadata", "ServerMetadata"),
        ("metadata", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"),
        ("metadata", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"),
        ("model-config", "ModelConfig"),
        ("statistics", "ModelStatistics"),
        ("model-repository", "RepositoryIndex"),
        ("model-repository", "RepositoryModelLoad"),
        ("model-repository", "RepositoryModelUnload"),
        ("inference", "ModelInfer"),
        ("inference", "ModelStreamInfer"),
        ("shared-memory", "SystemSharedMemoryStatus"),
        ("trace", "TraceSetting"),
        ("logging", "LogSettings"),
    ],
)
def test_restricted_methods_ask_for_the_header(api, method):
    group = RestrictedGroup(apis=(api,), header="token", value="secret")
    client = GrpcClient(ServerOptions(grpc_restricted=(group,)))
    text = f"This protocol is restricted, expecting header '{HEADER}'"

    assert refusal(client, method) == (GrpcStatus.UNAVAILABLE, text)
    assert refusal(client, method, b"", (HEADER, "guess")) == (GrpcStatus.UNAVAILABLE, text)
    allowed = client.call(method, b"", (HEADER, "secret"))
    assert client.response(allowed).text != text


@pytest.mark.parametrize("values", [("secret", "guess"), ("guess", "secret"), ("guess", "guess")])
def test_header_with_a_wrong_value_among_several_lets_nobody_in(values):
    group = RestrictedGroup(apis=("health",), header="token", value="secret")
    client = GrpcClient(ServerOptions(grpc_restricted=(group,)))
    fields = [(HEADER, value) for value in values]

    assert refusal(client, "ServerLive", b"", *fields)[0] is GrpcStatus.UNAVAILABLE


def test_header_with_the_right_value_twice_lets_its_client_in():
    group = RestrictedGroup(apis=("health",), header="token", value="secret")
    client = GrpcClient(ServerOptions(grpc_restricted=(group,)))
    stream = client.call("ServerLive", b"", (HEADER, "secret"), (HEADER, "secret"))

    assert client.response(stream).status == "0"


def test_health_check_and_watch_tell_whether_the_server_is_ready():
    client = GrpcClient()
    check = client.call("/grpc.health.v1.Health/Check", b"\x0a\x01x")
    watch = client.call("/grpc.health.v1.Health/Watch")
    client.engine.is_serving = False
    client.loop.advance(2)
    client.engine.is_serving = True
    client.loop.advance(2)
    client.run()

    assert client.response(check).messages == [b"\x08\x01"]
    assert client.response(watch).messages == [b"\x08\x01", b"\x08\x02", b"\x08\x01"]
    assert client.response(watch).trailers is None


def test_watch_that_was_cancelled_is_told_nothing():
    client = GrpcClient()
    watch = client.call("/grpc.health.v1.Health/Watch")
    client.reset(watch)
    client.engine.is_serving = False
    client.loop.advance(2)
    client.run()

    assert client.response(watch).messages == [b"\x08\x01"]


def test_no_timer_is_left_without_connections():
    client = GrpcClient()
    client.connection.connection_lost(None)
    client.loop.advance(5)

    assert client.loop.timer_count == 0


# Keepalive on a connection; the decisions themselves are tested with the keepalive.


def test_silent_client_is_pinged_and_then_cut_off():
    options = KeepaliveOptions(time_ms=1000, timeout_ms=500, permit_without_calls=True)
    client = GrpcClient(ServerOptions(grpc_keepalive=options))
    start_ns = 10**18

    client.connection.check(start_ns)
    client.run()
    assert client.sent[-1].payload == b"keepaliv"
    client.connection.check(start_ns + 600_000_000)

    assert client.transport.is_aborted


def test_own_pings_do_not_count_as_data():
    options = KeepaliveOptions(time_ms=1000, permit_without_calls=True, max_pings_without_data=2)
    client = GrpcClient(ServerOptions(grpc_keepalive=options))
    for _ in range(5):
        client.connection.check(10**18)
        client.run()
        client.connection._received_ns = 10**18  # as if the ping had been answered
        client.connection.check(10**18)
        client.connection._received_ns = 0

    assert len([sent for sent in client.sent if sent.payload == b"keepaliv"]) == 2


def test_old_connection_is_asked_to_go():
    options = KeepaliveOptions(max_connection_age_ms=1000)
    client = GrpcClient(ServerOptions(grpc_keepalive=options))
    stream = client.call("ModelInfer", infer_request())

    client.connection.check(10**18)
    client.run()
    client.engine.answer()
    client.run()

    assert len(client.goaways()) == 1
    assert client.response(stream).status == "0"


# Reflection


@pytest.fixture(params=PACKAGES)
def reflection(request):
    return ReflectionService(request.param)


def reflect(service, **choice):
    request = service._request_class(**choice)
    return service._response_class.FromString(service.answer(request.SerializeToString()))


def files(response) -> set[str]:
    return {
        descriptor_pb2.FileDescriptorProto.FromString(proto).name
        for proto in response.file_descriptor_response.file_descriptor_proto
    }


def test_reflection_lists_every_service(reflection):
    response = reflect(reflection, list_services="")

    assert {service.name for service in response.list_services_response.service} == {
        "inference.GRPCInferenceService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }


@pytest.mark.parametrize(
    "symbol",
    [
        "inference.GRPCInferenceService",
        "inference.GRPCInferenceService.ModelInfer",
        "inference.ModelInferRequest.InferInputTensor",
        "inference.ModelInferRequest.model_name",
    ],
)
def test_reflection_gives_the_files_of_a_symbol_with_what_they_need(reflection, symbol):
    response = reflect(reflection, file_containing_symbol=symbol)

    assert files(response) == {"grpc_service.proto", "model_config.proto"}


def test_reflection_gives_a_file_by_its_name(reflection):
    assert files(reflect(reflection, file_by_filename="grpc/health/v1/health.proto")) == {
        "grpc/health/v1/health.proto"
    }


@pytest.mark.parametrize(
    "choice",
    [
        {"file_containing_symbol": "nobody.Knows"},
        {"file_by_filename": "nobody.proto"},
        {"all_extension_numbers_of_type": "nobody.Knows"},
        {},
    ],
)
def test_reflection_says_what_it_does_not_know(reflection, choice):
    response = reflect(reflection, host="here", **choice)

    assert response.error_response.error_code == GrpcStatus.NOT_FOUND
    assert response.valid_host == "here"


def test_reflection_knows_that_there_are_no_extensions(reflection):
    name = "inference.ModelInferRequest"
    response = reflect(reflection, all_extension_numbers_of_type=name)

    assert response.all_extension_numbers_response.base_type_name == name
    assert not response.all_extension_numbers_response.extension_number


def test_reflection_answers_each_request_of_a_call():
    client = GrpcClient()
    stream = client.open("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    client.send(stream, b"\x3a\x01*", b"\x1a\x01x")

    assert len(client.response(stream).messages) == 2
    assert client.response(stream).status == "0"


def test_reflection_refuses_what_it_cannot_read():
    client = GrpcClient()
    stream = client.open("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    client.send(stream, b"\xff")

    assert client.response(stream).status == str(int(GrpcStatus.INTERNAL))
