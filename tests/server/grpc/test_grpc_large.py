# SPDX-License-Identifier: Apache-2.0
"""Large messages: read into the memory of their model, without a copy that could be spared."""

from __future__ import annotations

import gc
import tracemalloc
import weakref

import numpy as np
import pytest

from pytriton.base.protos import service_pb2
from pytriton.protocol.grpc import GrpcStatus, message_prefix
from pytriton.serving.server.access.control import AccessControl
from pytriton.serving.server.access.credentials import Peer
from pytriton.serving.server.access.keys import KeyRecord, make_key
from pytriton.serving.server.access.policy import Policy, Rights
from pytriton.serving.server.grpc import connection
from tests.server.grpc_fakes import GrpcClient, framed
from tests.wire.http2.frame_client import data, fill

TENSOR = np.arange(75_000, dtype=np.float32)


class ModelMemory:
    """What a model has for large bodies; keeps none of it alive."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.arrays: list[weakref.ref] = []

    def body_memory(self, size: int, header_bytes: int) -> memoryview:
        array = np.zeros(size, np.uint8)
        self.asked.append((size, header_bytes))
        self.arrays.append(weakref.ref(array))
        return array.data


@pytest.fixture
def memory():
    return ModelMemory()


@pytest.fixture
def client(memory):
    client = GrpcClient()
    for model in client.engine.loaded.values():
        model.body_memory = memory.body_memory
    return client


def request(*tensors: np.ndarray, model: str = "coupled", request_id: str = "") -> bytes:
    message = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for number, tensor in enumerate(tensors):
        message.inputs.add(name=f"x{number}", datatype="FP32", shape=tensor.shape)
        message.raw_input_contents.append(tensor.tobytes())
    content: bytes = message.SerializeToString()
    return content


def frames_of(stream: int, content: bytes, size: int, *, end: bool = True) -> bytes:
    starts = range(0, len(content), size)
    return b"".join(
        data(stream, content[at : at + size], end_stream=end and at == starts[-1]) for at in starts
    )


def tensors(client: GrpcClient, index: int = 0) -> list:
    return [tensor.data for tensor in client.engine.inferences[index].request.inputs.values()]


@pytest.mark.parametrize("frame_bytes", [1000, 16_384, 100_000, 1 << 20])
def test_large_message_is_read_into_the_memory_of_its_model(client, memory, frame_bytes):
    content = request(TENSOR)
    stream = client.open("ModelInfer")
    wire = frames_of(stream, framed(content), frame_bytes)
    for start in range(0, len(wire), 40_000):
        client.receive(wire[start : start + 40_000])

    (tensor,) = tensors(client)
    assert tensor == TENSOR.tobytes()
    assert tensor.obj is memory.arrays[0]()
    assert memory.asked == [(len(content), len(content) - TENSOR.nbytes)]


def test_large_message_is_not_copied_on_its_way(client):
    stream = client.open("ModelInfer")
    wire = frames_of(stream, framed(request(TENSOR)), 1 << 20)
    client.receive(wire[:1000])

    room = client.transport.protocol.get_buffer(-1)
    room[:] = wire[1000:]
    client.transport.protocol.buffer_updated(len(room))

    (tensor,) = tensors(client)
    assert tensor == TENSOR.tobytes()
    assert tensor.obj is room.obj


@pytest.mark.parametrize("frame_bytes", [16_384, 100_000])
def test_frames_of_a_large_message_are_read_at_once(client, memory, monkeypatch, frame_bytes):
    transport = client.transport
    reads = []

    def read_parts(parts: list[memoryview]) -> int:
        reads.append(sum(map(len, parts)))
        size = fill(parts, bytes(transport.unread))
        del transport.unread[:size]
        return size

    monkeypatch.setattr(connection, "reader_of_parts", lambda _: read_parts)
    stream = client.open("ModelInfer")
    wire = frames_of(stream, framed(request(TENSOR)), frame_bytes)
    client.receive(wire[: frame_bytes + 1000])
    client.receive(wire[frame_bytes + 1000 :])

    (tensor,) = tensors(client)
    assert tensor == TENSOR.tobytes()
    assert tensor.obj is memory.arrays[0]()
    assert len(reads) == 1


def test_start_of_the_next_large_message_is_little(client, memory):
    for _ in range(2):
        stream = client.open("ModelInfer")
        client.receive(frames_of(stream, framed(request(TENSOR)), 1 << 20))

    room = client.transport.protocol.get_buffer(-1)

    assert len(memory.asked) == 2
    assert len(room) <= 64 << 10


def test_every_message_of_a_stream_has_its_own_memory(client, memory):
    stream = client.open("ModelStreamInfer")
    content = b"".join(framed(request(TENSOR + n, request_id=str(n))) for n in range(3))
    wire = frames_of(stream, content, 16_384, end=False)
    for start in range(0, len(wire), 100_000):
        client.receive(wire[start : start + 100_000])

    assert [tensors(client, n)[0] for n in range(3)] == [(TENSOR + n).tobytes() for n in range(3)]
    assert len(memory.asked) == 3


def test_transport_reads_for_large_messages_only_as_long_as_they_come(client):
    transport = client.transport
    for _ in range(2):
        stream = client.open("ModelInfer")
        wire = frames_of(stream, framed(request(TENSOR)), 16_384)
        assert transport.protocol is client.connection

        client.receive(wire[:100_000])
        assert transport.protocol is not client.connection
        client.receive(wire[100_000:])
        client.call("ServerLive")

        assert transport.protocol is client.connection


def test_connection_hears_of_everything_while_a_large_message_comes(client):
    stream = client.open("ModelInfer")
    client.receive(frames_of(stream, framed(request(TENSOR)), 1 << 20)[:100_000])
    reader = client.transport.protocol

    reader.pause_writing()
    client.connection.begin_shutdown()
    client.run()
    assert not client.goaways()
    reader.resume_writing()
    client.run()

    assert client.goaways()
    assert not reader.eof_received()


def test_message_that_ends_in_the_read_in_which_it_began_leaves_no_room(client):
    first, second, other = (client.open("ModelStreamInfer") for _ in range(3))
    whole = framed(request(TENSOR[:20_000], request_id="whole"))
    client.receive(data(other, framed(request(TENSOR))[:1000]))  # now reads are not divided
    client.receive(
        data(first, whole[:2000])
        + data(second, b"\0")
        + data(first, whole[2000:])
        + data(second, framed(request(TENSOR[:9], request_id="small"))[1:])
    )
    client.receive(data(first, framed(request(TENSOR[:5], request_id="next"))))

    ids = [sent.request.fields.id for sent in client.engine.inferences]
    assert sorted(ids) == ["next", "small", "whole"]


@pytest.mark.parametrize("model", ["nobody", "coupled"])
def test_large_message_without_memory_for_it_is_read_all_the_same(client, memory, model):
    client.engine.loaded["coupled"].body_memory = lambda size, header_bytes: None
    stream = client.open("ModelInfer")
    client.receive(frames_of(stream, framed(request(TENSOR, model=model)), 16_384))

    assert not memory.asked
    if model == "nobody":
        assert client.response(stream).status == str(int(GrpcStatus.NOT_FOUND))
    else:
        assert tensors(client) == [TENSOR.tobytes()]


def test_model_that_has_no_memory_left_gets_a_copy(client):
    client.engine.loaded["coupled"].body_memory = lambda size, header_bytes: None
    stream = client.open("ModelInfer")
    client.receive(frames_of(stream, framed(request(TENSOR)), 16_384))

    assert tensors(client) == [TENSOR.tobytes()]


def test_small_message_in_parts_takes_no_memory_of_the_model(client, memory):
    stream = client.open("ModelInfer")
    wire = frames_of(stream, framed(request(TENSOR[:1000])), 1000)
    for start in range(0, len(wire), 500):
        client.receive(wire[start : start + 500])

    assert tensors(client) == [TENSOR[:1000].tobytes()]
    assert not memory.asked


def test_stream_that_ends_inside_a_large_message_is_refused(client, memory):
    stream = client.open("ModelInfer")
    wire = frames_of(stream, framed(request(TENSOR))[:-1], 16_384)
    client.receive(wire[:50_000])
    client.receive(wire[50_000:])

    assert client.response(stream).status == str(int(GrpcStatus.INTERNAL))
    assert "whole message" in client.response(stream).text
    assert len(memory.asked) == 1


def test_broken_large_message_is_refused(client):
    content = bytearray(framed(request(TENSOR)))
    content[-TENSOR.nbytes - 4] = 0xFF
    stream = client.open("ModelInfer")
    wire = frames_of(stream, bytes(content), 16_384)
    client.receive(wire[:50_000])
    client.receive(wire[50_000:])

    assert client.response(stream).status == str(int(GrpcStatus.INTERNAL))
    assert client.response(stream).text == "Unable to parse request"


@pytest.mark.parametrize("end", ["reset", "lost", "deadline"])
def test_call_that_is_given_up_frees_its_memory_at_once(client, memory, end):
    timeout = [("grpc-timeout", "1S")] if end == "deadline" else []
    stream = client.open("ModelInfer", *timeout)
    client.receive(frames_of(stream, framed(request(TENSOR))[:200_000], 16_384, end=False))
    (array,) = memory.arrays
    assert array() is not None

    gc.disable()
    try:
        if end == "reset":
            client.reset(stream)
        elif end == "lost":
            client.transport.protocol.connection_lost(None)
            client.transport.set_protocol(None)
            client.connection = None
        else:
            client.loop.advance(2)
            client.run()

        assert array() is None
    finally:
        gc.enable()


def test_declared_size_alone_takes_no_memory_without_a_model(client):
    start = request(TENSOR, model="nobody")[:500]
    stream = client.open("ModelInfer")

    tracemalloc.start()
    client.receive(data(stream, message_prefix((1 << 31) - 1) + start))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 100_000


def policed_client(record: KeyRecord, *models: str) -> GrpcClient:
    """A client of a server whose policy lets the principal of one key use some models."""
    rights = {record.principal: Rights(apis=("inference",), models=models)}
    access = AccessControl(Policy(principals=rights, keys={record.id: record}), "own", lambda: 1.0)
    client = GrpcClient(access=access)
    client.connection.peer = Peer("10.0.0.1", None)
    return client


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_sender_without_a_right_to_any_model_is_refused_by_the_head(method):
    key, record = make_key("team", 0.0, None)
    client = policed_client(record)
    response = client.response(client.call(method, request(TENSOR), ("x-api-key", key)))

    assert response.status == str(GrpcStatus.PERMISSION_DENIED.value)
    assert response.text == "team has no right to inference of any model"


def test_request_of_a_stream_without_a_right_to_its_model_is_not_kept():
    key, record = make_key("team", 0.0, None)
    client = policed_client(record, "stream")
    stream = client.open("ModelStreamInfer", ("x-api-key", key))
    wire = frames_of(stream, framed(request(TENSOR, request_id="7")), 16_384, end=False)

    client.receive(wire[:200_000])
    held = client.api.work.memory.used_bytes
    client.receive(wire[200_000:])
    client.receive(data(stream, framed(request(TENSOR, model="stream")), end_stream=True))

    assert held == 0
    assert [each.request.model_name for each in client.engine.inferences] == ["stream"]
