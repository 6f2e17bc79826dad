# SPDX-License-Identifier: Apache-2.0
"""Calls of ModelInfer for sequences that travel as columns: clients see the same as without."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.base import dtypes
from pytriton.base.model_spec import ControlSpec, SequenceControlKind, SequenceSpec
from pytriton.base.protos import service_pb2
from pytriton.serving.engine.sequence.sequence_inputs import added_input_names
from pytriton.serving.server.grpc.columns import LEARN_EVERY
from tests.column_rig import DoublingInstance
from tests.server.grpc.column_scene import ColumnScene, add_inputs
from tests.wire.http2.frame_client import rst_stream


class Scene(ColumnScene):
    """A client of a server with a sequence model, whose requests have been learned."""

    def __init__(self, *, learned_ids: tuple[int | str, ...] = (9, 300)) -> None:
        super().__init__()
        id_type = dtypes.BYTES if isinstance(learned_ids[0], str) else dtypes.UINT64
        id_input = ControlSpec(kind=SequenceControlKind.CORRID, name="id", dtype=id_type)
        sequence = SequenceSpec(max_candidates=32, controls=(id_input,))
        self.model = self.serve(sequence=sequence)
        added = added_input_names(self.model.spec)
        self.instance = DoublingInstance("m_0", self.model, added=added)
        self.instances = [self.instance]
        self.model.add_instance(self.instance)
        self.loop.run()
        for sequence_id in learned_ids:
            for _ in range(2 * LEARN_EVERY):
                self.send(request(1, sequence_id, start=True, end=True))
                self.finish()
        both = [request(1, learned_ids[0], start=True, end=True)] * 2
        self.send(*both)  # a request that probably comes alone is not gathered
        self.finish()

    def values(self, streams: list[int]) -> list[int]:
        """The first value of each answer."""
        values = []
        for stream in streams:
            (message,) = self.client.response(stream).messages
            answer = service_pb2.ModelInferResponse.FromString(message)
            values.append(np.frombuffer(answer.raw_output_contents[0], np.int32)[0])
        return values


def request(value, sequence_id, *, start=False, end=False, request_id="", **parameters) -> bytes:
    message = service_pb2.ModelInferRequest(model_name="m", id=request_id)
    choice = "string_param" if isinstance(sequence_id, str) else "int64_param"
    setattr(message.parameters["sequence_id"], choice, sequence_id)
    message.parameters["sequence_start"].bool_param = start
    message.parameters["sequence_end"].bool_param = end
    for name, number in parameters.items():
        message.parameters[name].int64_param = number
    add_inputs(message, value, value)
    content: bytes = message.SerializeToString(deterministic=True)
    return content


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_calls_of_sequences_travel_as_columns(scene):
    streams = scene.send(*[request(number, number, start=True) for number in (5, 6, 700)])

    assert scene.is_columns == [True] * 3
    assert scene.instance.inputs()["id"] == [5, 6, 700]
    scene.finish()
    assert scene.values(streams) == [10, 12, 1400]
    assert scene.client.connection.http2.open_streams == 0


def test_text_ids_travel_as_columns():
    scene = Scene(learned_ids=("nine",))
    scene.send(request(1, "five", start=True), request(1, "four", start=True))

    assert scene.is_columns == [True, True]
    assert scene.instance.inputs()["id"] == [b"five", b"four"]
    scene.finish()


def test_answers_are_those_of_ordinary_requests(scene):
    streams = scene.send(request(3, 5, start=True), request(3, 6, start=True))
    columns = scene.is_columns
    scene.finish()
    streams += scene.send(request(3, 7, start=True, timeout=0))
    others = scene.is_columns
    scene.finish()
    one, other, ordinary = (
        [sent[:2] + sent[3:] for sent in scene.client.sent if sent.stream_id == stream_id]
        for stream_id in streams
    )

    assert (columns, others) == ([True, True], [False])
    assert one == other == ordinary


def test_requests_of_a_sequence_keep_their_order_whatever_way_they_take(scene):
    streams = scene.send(
        request(9, 300, start=True),
        request(1, 4, start=True),
        request(2, 4, timeout=0),
        request(3, 4),
        request(4, 4, request_id="r"),
        request(5, 4, end=True),
    )
    scene.finish()

    assert scene.values(streams) == [18, 2, 4, 6, 8, 10]
    assert not scene.model.is_busy


@pytest.mark.parametrize(
    "mistake", [request(1, 77), request(1, 0, start=True), request(1, "x", start=True)]
)
def test_mistakes_are_answered_as_before(scene, mistake):
    scene.send(request(1, 5, start=True))
    first, _ = scene.send(mistake, request(2, 5))
    scene.finish()
    response, other = scene.client.response(first), Scene(learned_ids=(2**40,))
    (before,) = other.send(mistake)
    expected = other.client.response(before)

    assert response.status == expected.status == "3"
    assert response.text == expected.text


def test_reset_call_is_cancelled(scene):
    scene.send(request(1, 5, start=True), request(1, 6, start=True))
    first, second = scene.send(request(2, 5), request(2, 6))
    scene.client.receive(rst_stream(first))
    scene.finish()

    assert scene.values([second]) == [4]
    assert not scene.model.is_busy
