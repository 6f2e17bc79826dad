# SPDX-License-Identifier: Apache-2.0
"""Small calls that travel as columns get the answers of all others, byte for byte."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pytriton.base.messages import RequestPath
from pytriton.base.model_spec import BatcherSpec, QueuePolicySpec
from pytriton.base.protos import service_pb2
from pytriton.protocol.http2 import frames
from pytriton.serving.engine.model import Model
from pytriton.serving.server.grpc.columns import LEARN_EVERY
from pytriton.serving.server.options.server_options import ServerOptions
from pytriton.serving.server.tracing.settings import TraceSampling
from tests.column_rig import DoublingInstance
from tests.fakes import SelectiveTracing
from tests.server.grpc.column_scene import WIDTH, ColumnScene, add_inputs
from tests.server.grpc_fakes import SERVICE, framed
from tests.wire.http2.frame_client import data, rst_stream


class Scene(ColumnScene):
    """A client of a server with one model or more."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.model, self.instance = self.add_model()
        self.instances = [self.instance]

    def add_model(
        self, name: str = "m", version: int = 1, **spec
    ) -> tuple[Model, DoublingInstance]:
        model = self.serve(name=name, version=version, **spec)
        instance = DoublingInstance(f"{name}_0", model)
        model.add_instance(instance)
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


@pytest.fixture
def scene() -> Scene:
    return Scene()


def request(*values: int, name: str = "m", rows: int = 1, **fields) -> bytes:
    message = service_pb2.ModelInferRequest(model_name=name, **fields)
    add_inputs(message, *(values or (1, 2)), rows=rows)
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
        {"id": "é"},
        {"id": "x" * 200},
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


def answer_of(scene: Scene, stream_id: int) -> service_pb2.ModelInferResponse:
    (message,) = scene.client.response(stream_id).messages
    return service_pb2.ModelInferResponse.FromString(message)


def test_ids_of_any_length_travel_as_columns(scene):
    scene.learn(request(id="0"))
    ids = ["7", "1234", "é", "x" * 127]

    streams = scene.send(*(request(number, 0, id=each) for number, each in enumerate(ids)))

    assert scene.is_columns == [True] * 4
    (frame,) = scene.instance.frames[-1:]
    assert frame.ids == dict(enumerate(ids))
    scene.finish()
    assert [answer_of(scene, each).id for each in streams] == ids
    assert [values_of(scene, each)["x"][0] for each in streams] == [0, 2, 4, 6]


def test_requests_with_and_without_ids_share_a_batch(scene):
    scene.learn(request())
    scene.learn(request(id="0"))

    streams = scene.send(request(), request(id="7"), request())

    assert scene.is_columns == [True] * 3
    scene.finish()
    assert [answer_of(scene, each).id for each in streams] == ["", "7", ""]


def parameters(**values: str | bool | float) -> dict[str, service_pb2.InferParameter]:
    choices = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    return {
        name: service_pb2.InferParameter(**{choices[type(value)]: value})
        for name, value in values.items()
    }


def test_parameters_travel_as_columns(scene):
    given = [{"a": 0.5, "b": "xy"}, {"a": 1.5, "b": "zz"}, {"a": 0.5, "b": "xy"}]
    scene.learn(request(parameters=parameters(a=2.5, b="cc")))

    streams = scene.send(*(request(parameters=parameters(**each)) for each in given))

    assert scene.is_columns == [True] * 3
    (frame,) = scene.instance.frames[-1:]
    assert frame.parameters == dict(enumerate(given))
    scene.finish()
    assert [values_of(scene, each)["x"] for each in streams] == [[2, 2]] * 3


def test_priorities_and_timeouts_travel_as_columns(scene):
    scene.learn(request(parameters=parameters(priority=1, timeout=9)))
    scene.send(*[request(parameters=parameters(priority=2, timeout=8))] * 2)

    (batch,) = scene.instance.running
    found = scene.instance.tracker.inferences_of(batch)[0]
    assert found.chunk is not None
    assert (found.request.fields.priority, found.request.fields.timeout_us) == (2, 8)
    scene.finish()


def random_request(source: random.Random, kind: float) -> bytes:
    """A request of a kind; those of one kind differ in their values and ids.

    Requests of kinds with whole numbers are mostly valid.
    """
    is_usual = isinstance(kind, int)
    values = {
        "priority": source.choice([0, 1, 2, -1, "no"]),
        "timeout": source.choice([0, 1, 10**6, 10**7]),
        "a": source.choice([True, 1, -7, 0.25, "text", "other text"]),
        "sequence_id": source.choice([0, 5, "five"]),
        "triton_x": 1,
    }
    fixed = random.Random(kind)
    names = fixed.choice([[], ["a"], ["priority", "timeout"], ["sequence_id"], ["triton_x"]])
    outputs = fixed.choice([[], ["y"], ["x", "y"], ["z"]])
    if is_usual:
        names = [name for name in names if name != "triton_x"]
        outputs = [name for name in outputs if name != "z"]
    return request(
        source.randint(-9, 9),
        source.randint(-9, 9),
        rows=fixed.choice([1, 2] if is_usual else [1, 3, 40]),
        name="m" if is_usual else fixed.choice("mn"),
        id=source.choice(["", "", "7", "eight", "é" * 9, "x" * 128]),
        parameters=parameters(**{name: values[name] for name in names}),
        outputs=[
            service_pb2.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in outputs
        ],
    )


@pytest.mark.parametrize("seed", range(10))
def test_random_requests_get_the_answers_of_the_ordinary_way(seed):
    source = random.Random(seed)
    columns, ordinary = Scene(), Scene()
    for table in ordinary.client.api.column_tables:
        table.take = lambda *_: None

    for _ in range(200):
        kinds = [source.choice([seed, seed, seed + 100, source.random()]) for _ in range(8)]
        messages = [random_request(source, each) for each in kinds]
        streams = [scene.send(*messages) for scene in (columns, ordinary)]
        assert streams[0] == streams[1]
        for scene in (columns, ordinary):
            scene.finish()
        got, expected = (
            [[sent[:2] + sent[3:] for sent in scene.client.sent if sent.stream_id == each]
             for each in streams[0]]
            for scene in (columns, ordinary)
        )  # fmt: skip
        assert got == expected
        columns.client.sent.clear()
        ordinary.client.sent.clear()

    assert columns.model.statistics.paths[RequestPath.COLUMNS] > 200
    assert not ordinary.model.statistics.paths[RequestPath.COLUMNS]
    assert not columns.model.is_busy


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
    scene.instances = [scene.instance]
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


def test_calls_with_metadata_of_their_own_travel_as_columns(scene):
    scene.learn(request())
    wire, streams = b"", []
    for number in range(3):
        head = scene.client.head(
            f"{SERVICE}/ModelInfer", ("x-request-id", str(number)), ("grpc-timeout", f"{number}S")
        )
        streams.append(int.from_bytes(head[5:9], "big"))
        wire += head + data(streams[-1], framed(request(number, 0)), end_stream=True)

    scene.client.receive(wire)

    assert scene.is_columns == [True] * 3
    scene.finish()
    assert [values_of(scene, each)["x"] for each in streams[1:]] == [[2, 2], [4, 4]]


def test_paths_of_requests_are_counted(scene):
    classes = service_pb2.ModelInferRequest.InferRequestedOutputTensor(
        name="x", parameters={"classification": service_pb2.InferParameter(int64_param=1)}
    )
    scene.learn(request())
    for message in (request(rows=30), request(rows=30), request(outputs=[classes])):
        scene.client.call("ModelInfer", message)
        scene.finish()

    paths = scene.model.statistics.paths
    assert {path.name: paths[path] for path in RequestPath if paths[path]} == {
        "COLUMNS": 2,  # the first of a layout is gathered; of the last two, the first seemed alone
        "ALONE": LEARN_EVERY,
        "NEW": LEARN_EVERY + 2,
        "FORM": 1,
    }


def test_requests_whose_heads_matter_are_counted():
    scene = Scene(options=ServerOptions(grpc_header_forward_pattern="x-.*"))
    scene.client.call("ModelInfer", request())

    assert scene.model.statistics.paths[RequestPath.HEADERS] == 1
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
