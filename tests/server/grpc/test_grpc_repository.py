# SPDX-License-Identifier: Apache-2.0
"""Listing, loading and unloading models over gRPC."""

from __future__ import annotations

import pytest

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.base.protos import service_pb2
from pytriton.protocol.grpc import GrpcStatus
from pytriton.serving.server.api.authorization import RestrictedGroup
from pytriton.testing import FakeEventLoop
from tests.server.control_fakes import ENTRIES, FakeControl
from tests.server.grpc_fakes import SERVICE, GrpcClient, framed
from tests.wire.http2.frame_client import data

GROUP = RestrictedGroup(apis=("model-repository",), header="token", value="secret")
METHODS = ["RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"]


@pytest.fixture
def control():
    return FakeControl(*ENTRIES)


@pytest.fixture
def connect(control):
    loop = FakeEventLoop()
    yield lambda options=None: GrpcClient(options, control=control, loop=loop)
    loop.run()
    loop.close()


@pytest.fixture
def client(connect):
    return connect()


def load_request(name="m", repository="", **parameters):
    request = service_pb2.RepositoryModelLoadRequest(model_name=name, repository_name=repository)
    for key, (choice, value) in parameters.items():
        setattr(request.parameters[key], choice, value)
    return request.SerializeToString()


def unload_request(name="m", repository="", **parameters):
    request = service_pb2.RepositoryModelUnloadRequest(model_name=name, repository_name=repository)
    for key, (choice, value) in parameters.items():
        setattr(request.parameters[key], choice, value)
    return request.SerializeToString()


def index(client, **fields):
    request = service_pb2.RepositoryIndexRequest(**fields).SerializeToString()
    (message,) = client.response(client.call("RepositoryIndex", request)).messages
    models = service_pb2.RepositoryIndexResponse.FromString(message).models
    return [(model.name, model.version, model.state, model.reason) for model in models]


def test_index_lists_what_is_known(client):
    assert index(client) == [
        ("broken", "1", "UNAVAILABLE", "Internal: no"),
        ("double", "1", "READY", ""),
        ("never", "", "", ""),
    ]
    assert index(client, ready=True) == [("double", "1", "READY", "")]


def test_load_is_answered_when_it_is_done(client, control):
    parameters = {"config": ("string_param", "{}"), "file:1/model.py": ("bytes_param", b"code")}
    stream = client.call("RepositoryModelLoad", load_request(**parameters))
    assert control.calls == [("load", "m", "{}", {"1/model.py": b"code"})]
    assert client.response(stream).trailers is None

    control.finish()
    client.run()

    response = client.response(stream)
    assert (response.status, response.messages) == ("0", [b""])


def test_unload_is_answered_when_it_is_done(client, control):
    request = unload_request(unload_dependents=("bool_param", True))
    stream = client.call("RepositoryModelUnload", request)
    assert control.calls == [("unload", "m", True)]
    assert client.response(stream).trailers is None

    control.finish()
    client.run()

    assert client.response(stream).status == "0"


def test_other_calls_of_a_connection_do_not_wait_for_a_load(client):
    client.call("RepositoryModelLoad", load_request())

    assert client.response(client.call("ServerReady")).status == "0"


@pytest.mark.parametrize("leave", ["reset", "lost"])
def test_load_goes_on_when_its_client_leaves(client, control, leave):
    stream = client.call("RepositoryModelLoad", load_request())
    if leave == "reset":
        client.reset(stream)
    else:
        client.connection.connection_lost(None)

    control.finish()
    client.run()

    assert control.ended == ["m"]
    assert client.response(stream).trailers is None


def test_load_goes_on_after_its_deadline(client, control):
    head = client.head(f"{SERVICE}/RepositoryModelLoad", ("grpc-timeout", "1n"))
    client.receive(head + data(1, framed(load_request()), end_stream=True))
    client.loop.advance(1)
    client.run()
    assert client.response(1).status == str(int(GrpcStatus.DEADLINE_EXCEEDED))
    assert control.ended == []

    control.finish()
    client.run()

    assert control.ended == ["m"]


@pytest.mark.parametrize(
    "failure,status,text",
    [
        (InternalError("failed to load 'm'"), GrpcStatus.INTERNAL, "failed to load 'm'"),
        (InvalidArgumentError("no"), GrpcStatus.INVALID_ARGUMENT, "no"),
        (
            RuntimeError("bug"), GrpcStatus.INTERNAL,
            "unexpected error in the server, its log says more",
        ),
    ],
)  # fmt: skip
def test_failure_is_told(client, control, failure, status, text, caplog):
    stream = client.call("RepositoryModelLoad", load_request())
    control.finish(failure)
    client.run()

    response = client.response(stream)
    assert (GrpcStatus(int(response.status)), response.text) == (status, text)
    assert ("bug" in caplog.text) == isinstance(failure, RuntimeError)


NO_REPOSITORY = "'repository_name' specification is not supported"
REFUSALS = [
    (
        "RepositoryIndex", b"\x0a\x01r", GrpcStatus.UNIMPLEMENTED, NO_REPOSITORY,
    ),
    (
        "RepositoryModelLoad",
        load_request(repository="r"),
        GrpcStatus.UNIMPLEMENTED,
        NO_REPOSITORY,
    ),
    (
        "RepositoryModelUnload", unload_request(repository="r"), GrpcStatus.UNIMPLEMENTED,
        NO_REPOSITORY,
    ),
    (
        "RepositoryModelLoad", load_request(config=("bytes_param", b"{}")),
        GrpcStatus.INVALID_ARGUMENT,
        "invalid value type for load parameter 'config', expected string_param.",
    ),
    (
        "RepositoryModelLoad", load_request(x=("string_param", "")), GrpcStatus.INVALID_ARGUMENT,
        "unrecognized load parameter 'x'.",
    ),
    (
        "RepositoryModelUnload", unload_request(unload_dependents=("int64_param", 1)),
        GrpcStatus.INVALID_ARGUMENT,
        "invalid value type for 'unload_dependents' parameter, expected bool_param.",
    ),
    (
        "RepositoryModelLoad", load_request(""), GrpcStatus.INVALID_ARGUMENT,
        "Model name cannot be empty. Please enter a valid name to deploy.",
    ),
    (
        "RepositoryModelLoad", load_request("../m"), GrpcStatus.INVALID_ARGUMENT,
        "invalid model name '../m', model name must not contain path traversal characters",
    ),
    ("RepositoryModelLoad", b"\x0a\xff", GrpcStatus.INTERNAL, "Unable to parse request"),
]  # fmt: skip


@pytest.mark.parametrize("method,message,status,text", REFUSALS)
def test_wrong_request_is_refused_at_once(client, control, method, message, status, text):
    response = client.response(client.call(method, message))

    assert (GrpcStatus(int(response.status)), response.text) == (status, text)
    assert control.calls == []


def test_server_that_exits_loads_nothing(client, control):
    client.engine.refuse()

    response = client.response(client.call("RepositoryModelLoad", load_request()))

    assert (GrpcStatus(int(response.status)), response.text) == (
        GrpcStatus.UNAVAILABLE,
        "Server exiting",
    )
    assert control.calls == []
