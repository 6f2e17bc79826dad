# SPDX-License-Identifier: Apache-2.0
"""What would hold all clients is done aside: inflating, compressing; or it is refused early."""

from __future__ import annotations

import gzip

import pytest

from pytriton.base.protos import service_pb2
from pytriton.protocol.grpc import GrpcStatus, message_prefix
from pytriton.protocol.grpc.messages import MAX_INFLATED_BYTES
from pytriton.serving.server.api.background import LoopBudget
from pytriton.serving.server.grpc import call
from pytriton.serving.server.grpc.connection import SMALL_MESSAGE_BYTES
from pytriton.serving.server.options.server_options import ServerOptions
from pytriton.testing import FakeEventLoop
from tests.server.control_fakes import FakeControl
from tests.server.grpc_fakes import GatedBackground, GrpcClient, infer_request
from tests.wire.http2.frame_client import data, rst_stream

GZIP = ("grpc-encoding", "gzip")
ACCEPTS = ("grpc-accept-encoding", "gzip")
COMPRESSING = ServerOptions(grpc_response_compression="low")


@pytest.fixture
def background():
    return GatedBackground()


@pytest.fixture
def connect(background):
    loop = FakeEventLoop()
    yield lambda options=None: GrpcClient(
        options, loop=loop, background=background, control=FakeControl()
    )
    background.gate.set()
    loop.run()
    loop.close()


@pytest.fixture
def client(connect):
    return connect()


def squeezed(message: bytes) -> bytes:
    compressed = gzip.compress(message)
    return message_prefix(len(compressed), is_compressed=True) + compressed


def large_request(request_id: str = "", model: str = "coupled") -> bytes:
    return (
        infer_request(model, request_id, model_version="")
        + service_pb2.ModelInferRequest(raw_input_contents=[bytes(1 << 20)]).SerializeToString()
    )


# Requests


def test_large_compressed_request_is_inflated_aside(client, background):
    stream = client.open("ModelInfer", GZIP)
    client.receive(data(stream, squeezed(large_request()), end_stream=True))
    assert background.waiting == 1
    assert not client.engine.inferences

    background.gate.set()
    client.run()
    assert len(client.engine.inferences) == 1
    client.engine.answer()
    client.run()
    assert client.response(stream).status == "0"


def test_small_compressed_request_is_not_inflated_aside(client, background):
    stream = client.open("ModelInfer", GZIP)
    client.receive(data(stream, squeezed(infer_request()), end_stream=True))

    assert background.waiting == 0
    assert len(client.engine.inferences) == 1


def test_requests_behind_one_that_is_inflated_keep_their_order(client, background):
    stream = client.open("ModelStreamInfer", GZIP)
    small = [squeezed(infer_request("coupled", str(at))) for at in (2, 3)]
    client.receive(data(stream, squeezed(large_request("1")) + small[0]))
    client.receive(data(stream, small[1], end_stream=True))
    assert not client.engine.inferences

    background.gate.set()
    client.run()
    assert [inference.request.fields.id for inference in client.engine.inferences] == [
        "1",
        "2",
        "3",
    ]


def test_client_that_leaves_while_its_request_is_inflated_is_forgotten(client, background):
    stream = client.open("ModelInfer", GZIP)
    client.receive(data(stream, squeezed(large_request()), end_stream=True))
    client.receive(rst_stream(stream))
    background.gate.set()
    client.run()

    assert not client.engine.inferences
    assert not client.transport.is_closed


def test_request_that_inflates_to_too_much_is_refused(client, background):
    background.gate.set()
    stream = client.open("ModelInfer", GZIP)
    client.receive(data(stream, squeezed(bytes(MAX_INFLATED_BYTES + 1)), end_stream=True))
    client.run()

    assert client.response(stream).status == str(int(GrpcStatus.RESOURCE_EXHAUSTED))
    assert str(MAX_INFLATED_BYTES) in client.response(stream).text


def test_damaged_request_is_refused_after_its_good_beginning(client, background):
    background.gate.set()
    stream = client.open("ModelInfer", GZIP)
    message = gzip.compress(bytes(1 << 20))[:-1]
    content = message_prefix(len(message), is_compressed=True) + message
    client.receive(data(stream, content, end_stream=True))
    client.run()

    assert "not exactly one gzip stream" in client.response(stream).text


def typed_request(request_id: str = "", count: int = 200_000) -> bytes:
    request = service_pb2.ModelInferRequest(model_name="coupled", id=request_id)
    request.inputs.add(name="x", datatype="FP32", shape=[count])
    request.inputs[0].contents.fp32_contents.extend([1] * count)
    content: bytes = request.SerializeToString()
    return content


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_typed_tensor_of_many_elements_is_read_aside(client, background, method):
    client.call(method, typed_request())
    assert background.waiting == 1
    assert not client.engine.inferences

    background.gate.set()
    client.run()
    assert len(client.engine.inferences) == 1


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_wrong_elements_end_only_their_request(client, background, method):
    background.gate.set()
    stream = client.open(method)
    message = typed_request("1").replace(b"FP32", b"INT8")
    client.send(stream, message, end=method == "ModelInfer")
    client.run()
    if method == "ModelInfer":
        text = client.response(stream).text
    else:
        (answer,) = client.response(stream).messages
        text = service_pb2.ModelStreamInferResponse.FromString(answer).error_message

    assert "of type 'FP32', expected datatype 'INT8'" in text
    assert not client.engine.inferences


def test_small_request_behind_one_with_many_elements_keeps_its_place(client, background):
    stream = client.open("ModelStreamInfer")
    client.send(stream, typed_request("1"), infer_request("coupled", "2"))
    background.gate.set()
    client.run()

    assert [inference.request.fields.id for inference in client.engine.inferences] == ["1", "2"]


class FullBudget(LoopBudget):
    """The budget of an iteration that has done enough already."""

    count = 0

    def is_free(self) -> bool:
        return False

    async def run(self, work):
        self.count += 1
        return await super().run(work)


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
@pytest.mark.parametrize("count,turns", [(10, 0), (10_000, 1)])
def test_request_of_medium_size_waits_for_its_turn(client, method, count, turns):
    """Many of them at once would otherwise delay everybody else by their sum."""
    full = client.api.work.loop_budget = FullBudget(client.loop)
    client.call(method, typed_request(count=count))
    client.run()

    assert len(client.engine.inferences) == 1
    assert full.count == turns


def test_requests_of_a_stream_keep_their_order_in_turns(client):
    client.api.work.loop_budget = FullBudget(client.loop)
    stream = client.open("ModelStreamInfer")
    client.send(
        stream, typed_request("1", 10_000), typed_request("2", 10), typed_request("3", 10_000)
    )
    client.run()

    assert [each.request.fields.id for each in client.engine.inferences] == ["1", "2", "3"]


def test_client_that_leaves_before_its_turn_is_forgotten(client):
    client.api.work.loop_budget = budget = FullBudget(client.loop, clock=lambda: 0.0)
    budget._begin = lambda: None  # the next iteration does not come
    stream = client.call("ModelInfer", typed_request(count=10_000))
    client.receive(rst_stream(stream))
    budget._next()
    client.run()

    assert budget.count == 1
    assert not budget._waiting
    assert not client.engine.inferences


@pytest.mark.parametrize(
    "method",
    [
        "ModelConfig",
        "ServerLive",
        "TraceSetting",
        "RepositoryModelUnload",
        "RepositoryIndex",
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    ],
)
def test_methods_without_tensors_or_files_take_small_messages_only(client, method):
    stream = client.call(method, bytes(SMALL_MESSAGE_BYTES + 1))

    assert client.response(stream).status == str(int(GrpcStatus.RESOURCE_EXHAUSTED))
    assert f"({SMALL_MESSAGE_BYTES + 1} vs. {SMALL_MESSAGE_BYTES})" in client.response(stream).text


# Responses


def test_large_response_is_compressed_aside(connect, background):
    client = connect(COMPRESSING)
    stream = client.call("ModelInfer", infer_request(), ACCEPTS)
    client.engine.answer(content=bytes(1 << 20))
    client.run()
    assert background.waiting == 1
    assert not client.response(stream).status

    background.gate.set()
    client.run()
    response = client.response(stream)
    assert response.status == "0"
    message = service_pb2.ModelInferResponse.FromString(gzip.decompress(response.messages[0]))
    assert message.raw_output_contents[0] == bytes(1 << 20)


def test_compressed_responses_of_a_stream_keep_their_order(connect, background):
    client = connect(COMPRESSING)
    stream = client.open("ModelStreamInfer", ACCEPTS)
    client.send(stream, infer_request("stream", "1"))
    for size in (4, 1 << 20, 8, 1 << 20, 12):
        client.engine.answer("1", bytes(size), final=size == 12)
    client.run()
    assert not client.response(stream).status

    background.gate.set()
    client.run()
    response = client.response(stream)
    sizes = [
        len(
            service_pb2.ModelStreamInferResponse.FromString(
                gzip.decompress(message)
            ).infer_response.raw_output_contents[0]
        )
        for message in response.messages
    ]
    assert sizes == [4, 1 << 20, 8, 1 << 20, 12]
    assert response.status == "0"


def test_model_waits_while_its_responses_are_compressed(connect, background):
    client = connect(COMPRESSING)
    stream = client.open("ModelStreamInfer", ACCEPTS)
    client.send(stream, infer_request("stream", "1"), end=False)
    client.engine.answer("1", bytes(2 << 20), final=False)
    client.run()
    assert client.engine.flow == [("pause", "1")]

    background.gate.set()
    client.run()
    assert client.engine.flow == [("pause", "1"), ("resume", "1")]


def test_client_that_leaves_while_a_response_is_compressed_is_forgotten(connect, background):
    client = connect(COMPRESSING)
    stream = client.open("ModelStreamInfer", ACCEPTS)
    client.send(stream, infer_request("stream", "1"))
    client.engine.answer("1", bytes(2 << 20), final=False)
    client.receive(rst_stream(stream))
    background.gate.set()
    client.run()

    assert not client.transport.is_closed
    assert len(client.engine.cancelled) == 1


@pytest.mark.parametrize("final", [False, True])
def test_call_whose_response_cannot_be_compressed_gets_a_status(
    connect, background, monkeypatch, final
):
    client = connect(COMPRESSING)
    stream = client.open("ModelStreamInfer", ACCEPTS)
    client.send(stream, infer_request("stream", "1"))
    client.engine.answer("1", bytes(1 << 20), final=False)
    client.engine.answer("1", bytes(1 << 20), final=final)

    def no_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(call, "compress", no_memory)
    background.gate.set()
    client.run()
    response = client.response(stream)

    assert (response.status, response.messages) == ("14", [])
    assert "memory" in response.text
    assert not client.connection.open_calls()
    assert len(client.engine.cancelled) == (0 if final else 1)
