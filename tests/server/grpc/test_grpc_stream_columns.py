# SPDX-License-Identifier: Apache-2.0
"""Streamed requests of sequences that travel as columns: clients see the same as without."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.base.model_spec import SequenceSpec
from pytriton.base.protos import service_pb2
from pytriton.serving.server.grpc.columns import LEARN_EVERY
from tests.column_rig import DoublingInstance
from tests.server.grpc.column_scene import ColumnScene, add_inputs
from tests.wire.http2.frame_client import rst_stream

STRICT = ("triton_grpc_error", "true")


class Scene(ColumnScene):
    """A stream to a server with a sequence model, whose requests have been learned."""

    def __init__(self, instances: int = 1, *metadata: tuple[str, str]) -> None:
        super().__init__()
        self.model = self.serve(sequence=SequenceSpec(max_candidates=32))
        self.instances = [
            DoublingInstance(f"m_{number}", self.model) for number in range(instances)
        ]
        self.model.add_instance(self.instances[0])
        self.loop.run()
        self.stream = self.client.open("ModelStreamInfer")
        for request_id in ("0", "00"):
            for _ in range(2 * LEARN_EVERY):
                self.send(request(1, 9, request_id, start=True, end=True))
                self.finish()
        both = request(1, 8, "0", start=True, end=True), request(1, 9, "0", start=True, end=True)
        self.send(*both)  # a request that probably comes alone is not gathered
        self.finish()
        for instance in self.instances[1:]:
            self.model.add_instance(instance)
        self.loop.run()
        self.stream = self.client.open("ModelStreamInfer", *metadata)

    def send(self, *messages: bytes, end: bool = False) -> None:
        """Let requests arrive in one read."""
        self.client.send(self.stream, *messages, end=end)
        self.client.run()

    @property
    def answers(self) -> list[service_pb2.ModelStreamInferResponse]:
        return [
            service_pb2.ModelStreamInferResponse.FromString(message)
            for message in self.client.response(self.stream).messages
        ]

    @property
    def values(self) -> list[tuple[str, int]]:
        """The id and the first value of each answer."""
        return [
            (each.infer_response.id, np.frombuffer(raw[0], np.int32)[0])
            for each in self.answers
            if (raw := each.infer_response.raw_output_contents)
        ]


def request(
    value, sequence_id, request_id="", *, start=False, end=False, classes=0, **parameters
) -> bytes:
    message = service_pb2.ModelInferRequest(model_name="m", id=request_id)
    message.parameters["sequence_id"].int64_param = sequence_id
    message.parameters["sequence_start"].bool_param = start
    message.parameters["sequence_end"].bool_param = end
    for name, number in parameters.items():
        message.parameters[name].int64_param = number
    add_inputs(message, value, value)
    if classes:
        message.outputs.add(name="x").parameters["classification"].int64_param = classes
    content: bytes = message.SerializeToString(deterministic=True)
    return content


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_sequences_on_a_stream_travel_as_columns(scene):
    scene.send(*[request(number, number, str(number), start=True) for number in (5, 6, 7)])

    assert scene.is_columns == [True] * 3
    scene.finish()
    assert scene.values == [("5", 10), ("6", 12), ("7", 14)]


def test_answers_are_those_of_ordinary_requests(scene):
    scene.send(*[request(1, number, "1", start=True) for number in (5, 6)])
    columns = scene.is_columns
    scene.finish()
    scene.send(*[request(1, number, "1", start=True, timeout=0) for number in (7, 8)])
    others = scene.is_columns
    scene.finish()
    one, other, third, fourth = scene.client.response(scene.stream).messages

    assert columns == [True, True]
    assert others == [False, False]
    assert one == other == third == fourth


def test_answers_keep_the_order_of_requests():
    scene = Scene(2)
    scene.send(*[request(number, number, str(number), start=True) for number in (1, 2, 3, 4)])
    first, second = scene.instances
    assert scene.is_columns == [True] * 4
    if first.tracker.inferences_of(first.running[0])[0].index:
        first, second = second, first
    second.double()
    scene.client.run()

    assert scene.values == []
    first.double()
    scene.client.run()
    assert scene.values == [("1", 2), ("2", 4), ("3", 6), ("4", 8)]


def test_requests_of_a_sequence_keep_their_order_whatever_way_they_take(scene):
    scene.send(
        request(20, 3, "10", start=True),
        request(1, 4, "8", start=True),
        request(2, 4, "9", timeout=0),
        request(3, 4, "10"),
        request(4, 4, "7"),
        request(5, 4, "11", end=True),
    )
    scene.finish()

    assert scene.values == [("10", 40), ("8", 2), ("9", 4), ("10", 6), ("7", 8), ("11", 10)]
    assert not any(answer.error_message for answer in scene.answers)
    assert not scene.model.is_busy


def test_ids_of_other_lengths_share_a_chunk(scene):
    scene.send(
        request(1, 4, "8", start=True),
        request(2, 5, "10", start=True),
        request(3, 6, "9", start=True),
    )
    (batch,) = scene.instances[0].running
    chunks = {each.chunk for each in scene.instances[0].tracker.inferences_of(batch)}
    scene.finish()

    assert len(chunks) == 1
    assert None not in chunks
    assert scene.values == [("8", 2), ("10", 4), ("9", 6)]


def test_refusal_is_that_of_ordinary_requests(scene):
    scene.send(request(1, 77, "7"), request(2, 5, "5", start=True))
    scene.finish()
    scene.send(request(1, 77, "7", timeout=0))
    refused, answered, ordinary = scene.answers

    assert "must specify the START flag" in refused.error_message
    assert refused == ordinary
    assert answered.infer_response.id == "5"


def test_failure_of_the_model_ends_each_request(scene):
    scene.send(*[request(1, number, str(number), start=True) for number in (5, 6)])
    scene.instances[0].fail()
    scene.client.run()

    assert [(each.error_message, each.infer_response.id) for each in scene.answers] == [
        ("no", "5"),
        ("no", "6"),
    ]
    assert scene.answers[0].infer_response.parameters["triton_final_response"].bool_param


def test_failure_ends_a_stream_that_wants_that():
    scene = Scene(1, STRICT)
    scene.send(*[request(1, number, str(number), start=True) for number in (5, 6)])
    scene.instances[0].fail()
    scene.client.run()

    assert (scene.client.response(scene.stream).status, scene.answers) == ("13", [])


def test_answers_by_item_are_passed_on(scene):
    scene.send(*[request(number, number, str(number), start=True) for number in (5, 6)])
    scene.instances[0].double_by_item(error="not this one")
    scene.client.run()

    failed, answered = scene.answers
    assert (failed.error_message, failed.infer_response.id) == ("not this one", "5")
    assert scene.values == [("6", 12)]
    assert answered.infer_response.id == "6"


def test_reset_stream_cancels_its_requests(scene):
    scene.send(*[request(1, number, str(number), start=True) for number in (5, 6)])
    scene.send(request(2, 5, "5"), request(2, 6, "6"))
    scene.client.receive(rst_stream(scene.stream))
    scene.finish()

    assert scene.instances[0].cancelled
    assert not scene.model.is_busy
    assert scene.model.statistics.pending_count == 0


def test_stream_ends_after_its_answers(scene):
    scene.send(
        *[request(1, number, str(number), start=True, end=True) for number in (5, 6)], end=True
    )
    scene.finish()

    assert scene.client.response(scene.stream).status == "0"
    assert [name for name, _ in scene.values] == ["5", "6"]


def test_classes_stay_classes(scene):
    for _ in range(2 * LEARN_EVERY):
        scene.send(request(7, 5, "5", start=True, end=True, classes=1))
        scene.finish()
    scene.send(*[request(7, number, "5", start=True, end=True, classes=1) for number in (5, 6)])
    scene.finish()

    assert {each.infer_response.outputs[0].datatype for each in scene.answers} == {"BYTES"}
