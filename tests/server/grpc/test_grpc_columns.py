# SPDX-License-Identifier: Apache-2.0
"""Small calls that travel as columns get the answers of all others, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pytriton.base import dtypes
from pytriton.base.model_spec import BatcherSpec, ModelTensor, QueuePolicySpec
from pytriton.base.protos import service_pb2
from pytriton.protocol.http2 import frames
from pytriton.serving.engine.engine import Engine
from pytriton.serving.engine.model import Model
from pytriton.serving.server.binding.bound_control import BoundControl
from pytriton.serving.server.grpc.columns import LEARN_EVERY
from pytriton.serving.server.tracing.settings import TraceSampling
from tests.column_rig import DoublingInstance
from tests.fakes import SelectiveTracing, model_spec
from tests.server.grpc_fakes import SERVICE, GrpcClient, framed
from tests.server.http_fakes import FakeLoop
from tests.wire.http2.frame_client import data, rst_stream

WIDTH = 2


class Scene:
    """A client of a server with a model that doubles what it gets, when a test says so."""

    def __init__(self, **options) -> None:
        self.loop = FakeLoop()
        self.engine = Engine()
        self.model, self.instance = self.add_model()
        self.client = GrpcClient(
            engine=self.engine, control=BoundControl(self.engine, None), loop=self.loop, **options
        )

    def add_model(
        self, name: str = "m", version: int = 1, **spec
    ) -> tuple[Model, DoublingInstance]:
        tensors = {
            each: ModelTensor(name=each, dtype=dtypes.INT32, dims=(WIDTH,), shape=(-1, WIDTH))
            for each in ("x", "y")
        }
        spec = {"name": name, "version": version, "outputs": tensors, "inputs": tensors, **spec}
        model = Model(model_spec(32, **spec), self.loop)
        instance = DoublingInstance(f"{name}_0", model)
        model.add_instance(instance)
        self.engine.add(model)
        self.engine.set_ready(model)
        self.loop.run()
        return model, instance

    def learn(self, message: bytes) -> None:
        """Make calls like this one until later ones travel as columns."""
        for _ in range(2 * LEARN_EVERY):
            stream_id = self.client.call("ModelInfer", message)
            self.finish()
            assert self.client.response(stream_id).status == "0"
        self.send(message, message)  # a request that probably comes alone is not gathered
        self.finish()

    def send(self, *messages: bytes, fields: Sequence[tuple[str, str]] = ()) -> list[int]:
        """Make calls in one read; returns their streams."""
        wire, streams = b"", []
        for message in messages:
            head = self.client.head(f"{SERVICE}/ModelInfer", *fields)
            streams.append(int.from_bytes(head[5:9], "big"))
            wire += head + data(streams[-1], framed(message), end_stream=True)
        self.client.receive(wire)
        return streams

    def finish(self) -> None:
        while self.instance.running:
            self.instance.double()
            self.loop.run()
        self.client.run()

    @property
    def is_columns(self) -> list[bool]:
        """Whether the requests of the running batches travel as columns."""
        return [
            inference.chunk is not None
            for batch in self.instance.running
            for inference in self.instance.tracker.inferences_of(batch)
        ]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def request(*values: int, name: str = "m", rows: int = 1, **fields) -> bytes:
    message = service_pb2.ModelInferRequest(model_name=name, **fields)
    for each, value in zip(("x", "y"), values or (1, 2), strict=True):
        message.inputs.add(name=each, datatype="INT32", shape=[rows, WIDTH])
        message.raw_input_contents.append(np.full((rows, WIDTH), value, np.int32).tobytes())
    content: bytes = message.SerializeToString()
    return content


def values_of(scene: Scene, stream_id: int) -> dict[str, list[int]]:
    response = scene.client.response(stream_id)
    assert response.status == "0", response.text
    (message,) = response.messages
    answer = service_pb2.ModelInferResponse.FromString(message)
    return {
        output.name: np.frombuffer(raw, np.int32).tolist()
        for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }


def test_repeated_requests_travel_as_columns(scene):
    scene.learn(request())

    streams = scene.send(*(request(number, -number) for number in range(8)))

    assert scene.is_columns == [True] * 8
    scene.finish()
    assert [values_of(scene, stream_id) for stream_id in streams] == [
        {"x": [2 * number] * WIDTH, "y": [-2 * number] * WIDTH} for number in range(8)
    ]
    assert scene.client.connection.http2.open_streams == 0


@pytest.mark.parametrize("rows", [1, 3])
def test_answers_are_those_of_ordinary_requests(scene, rows):
    message = request(5, 6, rows=rows)
    ordinary = scene.client.call("ModelInfer", message)
    scene.finish()
    scene.learn(message)

    streams = scene.send(message, message)

    assert scene.is_columns == [True, True]
    scene.finish()
    expected = [sent[:2] + sent[3:] for sent in scene.client.sent if sent.stream_id == ordinary]
    for stream_id in streams:
        got = [sent[:2] + sent[3:] for sent in scene.client.sent if sent.stream_id == stream_id]
        assert got == expected


def test_heads_before_all_data_make_no_difference(scene):
    scene.learn(request())
    streams = [scene.client.open("ModelInfer") for _ in range(3)]

    parts = [data(stream_id, framed(request()), end_stream=True) for stream_id in streams]
    scene.client.receive(b"".join(parts))

    assert scene.is_columns == [True] * 3
    scene.finish()
    assert [values_of(scene, stream_id)["x"] for stream_id in streams] == [[2, 2]] * 3


def test_inputs_may_come_in_another_order(scene):
    message = service_pb2.ModelInferRequest(model_name="m")
    for each, value in (("y", 7), ("x", 3)):
        message.inputs.add(name=each, datatype="INT32", shape=[1, WIDTH])
        message.raw_input_contents.append(np.full(WIDTH, value, np.int32).tobytes())
    scene.learn(message.SerializeToString())

    streams = scene.send(*[message.SerializeToString()] * 3)

    assert scene.is_columns == [True] * 3
    scene.finish()
    assert values_of(scene, streams[0]) == {"x": [6, 6], "y": [14, 14]}


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "7"},
        {"parameters": {"priority": service_pb2.InferParameter(int64_param=1)}},
        {"model_version": "1"},
        {
            "outputs": [
                service_pb2.ModelInferRequest.InferRequestedOutputTensor(
                    name="x",
                    parameters={"classification": service_pb2.InferParameter(int64_param=1)},
                )
            ]
        },
    ],
)
def test_other_requests_get_their_own_answers_between_columns(scene, fields):
    scene.learn(request())
    scene.learn(request(**fields))

    streams = scene.send(request(1, 2), request(3, 4, **fields), request(5, 6))
    scene.finish()

    answers = [
        service_pb2.ModelInferResponse.FromString(scene.client.response(stream_id).messages[0])
        for stream_id in streams
    ]
    assert answers[1].id == fields.get("id", "")
    assert values_of(scene, streams[2]) == {"x": [10, 10], "y": [12, 12]}
    if "outputs" in fields:
        assert [output.datatype for output in answers[1].outputs] == ["BYTES"]
    else:
        assert values_of(scene, streams[1]) == {"x": [6, 6], "y": [8, 8]}


def test_requested_outputs_are_kept(scene):
    wanted = service_pb2.ModelInferRequest.InferRequestedOutputTensor(name="y")
    message = request(1, 2, outputs=[wanted])
    scene.learn(message)

    streams = scene.send(message, message)

    assert scene.is_columns == [True, True]
    scene.finish()
    assert [values_of(scene, stream_id) for stream_id in streams] == [{"y": [4, 4]}] * 2


def test_models_whose_requests_have_the_same_size_are_kept_apart(scene):
    _, other = scene.add_model("n")
    scene.learn(request())
    for _ in range(2 * LEARN_EVERY):
        scene.client.call("ModelInfer", request(name="n"))
        other.double()
        scene.client.run()

    first, second, third = scene.send(request(1, 2), request(3, 4, name="n"), request(5, 6))
    other.double()
    scene.finish()

    assert values_of(scene, first) == {"x": [2, 2], "y": [4, 4]}
    assert values_of(scene, second) == {"x": [6, 6], "y": [8, 8]}
    assert values_of(scene, third) == {"x": [10, 10], "y": [12, 12]}


def test_failure_of_the_model_ends_every_call(scene):
    scene.learn(request())
    streams = scene.send(request(), request())

    scene.instance.fail()
    scene.client.run()

    assert [scene.client.response(stream_id).status for stream_id in streams] == ["13", "13"]
    assert [scene.client.response(stream_id).text for stream_id in streams] == ["no", "no"]
    assert scene.client.connection.http2.open_streams == 0


def test_reset_call_is_cancelled_and_the_others_are_answered(scene):
    scene.learn(request())
    first, second = scene.send(request(1, 2), request(3, 4))

    scene.client.receive(rst_stream(first))

    assert len(scene.instance.cancelled) == 1
    scene.finish()
    assert scene.client.response(first).messages == []
    assert values_of(scene, second) == {"x": [6, 6], "y": [8, 8]}


def test_lost_connection_cancels_its_calls(scene):
    scene.learn(request())
    scene.send(request(), request())

    scene.client.connection.connection_lost(None)

    assert len(scene.instance.cancelled) == 2
    scene.finish()


def test_full_queue_refuses_calls(scene):
    name = "small"
    queue = BatcherSpec(default_queue_policy=QueuePolicySpec(max_queue_size=1))
    _, instance = scene.add_model(name, batcher=queue)
    for _ in range(2 * LEARN_EVERY):
        scene.client.call("ModelInfer", request(name=name))
        instance.double()
        scene.client.run()
    scene.client.call("ModelInfer", request(name=name))  # occupies the instance

    streams = scene.send(*[request(name=name)] * 3)

    statuses = [scene.client.response(stream_id).status for stream_id in streams]
    assert statuses == ["", "14", "14"]
    instance.double()
    scene.loop.run()
    instance.double()
    scene.client.run()
    assert values_of(scene, streams[0]) == {"x": [2, 2], "y": [4, 4]}


def test_model_that_was_replaced_gets_no_columns_of_the_old_one(scene):
    scene.learn(request())
    scene.engine.remove(scene.model)

    streams = scene.send(request(), request())

    assert [scene.client.response(each).status for each in streams] == ["5", "5"]
    scene.model, scene.instance = scene.add_model()
    streams = scene.send(request(), request())
    assert scene.is_columns == [False, False]
    scene.finish()
    scene.learn(request())
    scene.send(request(), request())
    assert scene.is_columns == [True, True]


def test_exiting_server_refuses_calls_that_repeat(scene):
    scene.learn(request())
    scene.engine.refuse()

    streams = scene.send(request(), request())

    assert [scene.client.response(each).text for each in streams] == ["Server exiting"] * 2


def test_answers_wait_for_the_window_of_the_client():
    scene = Scene(window=20)
    message = request()
    for _ in range(2 * LEARN_EVERY):
        scene.client.call("ModelInfer", message)
        scene.finish()
    scene.send(message, message)
    scene.finish()

    streams = scene.send(message, message)
    assert scene.is_columns == [True, True]
    scene.finish()

    sizes = [
        sum(len(sent.payload) for sent in scene.client.sent
            if sent.stream_id == each and sent.kind == frames.DATA)
        for each in streams
    ]  # fmt: skip
    assert sizes == [20, 20]


def test_calls_with_deadlines_travel_as_columns(scene):
    scene.learn(request())

    streams = scene.send(request(1, 2), request(3, 4), fields=[("grpc-timeout", "1S")])

    assert scene.is_columns == [True, True]
    scene.finish()
    assert [values_of(scene, each)["x"] for each in streams] == [[2, 2], [6, 6]]
    scene.loop.advance(2)
    scene.client.run()
    assert not scene.instance.cancelled


def test_passed_deadline_ends_a_call_and_cancels_its_member(scene):
    scene.learn(request())
    late = scene.send(request(1, 2), request(3, 4), fields=[("grpc-timeout", "2S")])
    early = scene.send(request(5, 6), fields=[("grpc-timeout", "1S")])
    plain = scene.send(request(7, 8))

    scene.loop.advance(1.5)
    scene.client.run()

    assert [scene.client.response(each).status for each in early + late] == ["4", "", ""]
    assert scene.client.response(early[0]).text == "Deadline Exceeded"
    scene.loop.advance(1)
    scene.client.run()
    assert [scene.client.response(each).status for each in late] == ["4", "4"]
    assert len(scene.instance.cancelled) == 2  # the early one was still queued
    scene.finish()
    assert values_of(scene, plain[0]) == {"x": [14, 14], "y": [16, 16]}
    assert not scene.model.is_busy


def test_deadline_counts_from_the_head_of_a_call(scene):
    scene.learn(request())
    first = scene.client.open("ModelInfer", ("grpc-timeout", "1S"))
    second = scene.client.open("ModelInfer", ("grpc-timeout", "1S"))
    scene.loop.advance(0.75)
    whole = framed(request())

    scene.client.receive(data(first, whole, end_stream=True) + data(second, whole, end_stream=True))
    columns = scene.is_columns
    scene.loop.advance(0.5)
    scene.client.run()

    assert columns == [True, True]
    assert [scene.client.response(each).status for each in (first, second)] == ["4", "4"]
    scene.finish()


def test_only_traced_requests_leave_the_columns():
    tracing = SelectiveTracing(10_000)
    scene = Scene(tracing=tracing)
    scene.learn(request())
    assert tracing.origins == []
    tracing.sampling = TraceSampling(4, -1)

    streams = scene.send(*(request(number, -number) for number in range(8)))

    assert sorted(scene.is_columns) == [False] * 2 + [True] * 6
    scene.finish()
    assert [values_of(scene, stream_id)["x"][0] for stream_id in streams] == [
        2 * number for number in range(8)
    ]
    assert [(each.protocol, bool(each.began_ns)) for each in tracing.origins] == [
        ("GRPC", True)
    ] * 2
