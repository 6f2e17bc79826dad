# SPDX-License-Identifier: Apache-2.0
"""Requests of sequences that travel as columns: clients see the same as without columns."""

from __future__ import annotations

import json

import pytest

from pytriton.serving.engine.config import config_from_text, normalise_config, spec_from_config
from pytriton.serving.engine.model import Model
from pytriton.serving.engine.sequence.sequence_inputs import added_input_names
from pytriton.serving.server.http.columns import LEARNED_AFTER, ColumnExchange
from tests.column_rig import DoublingInstance
from tests.server.http_fakes import post
from tests.server.http_models import Service

TARGET = b"/v2/models/m/infer"
TENSORS = ", ".join(f'{{ name: "{name}" data_type: TYPE_INT32 dims: [ 2 ] }}' for name in "xy")
CONTROLS = """control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } ] },
    { name: "ID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] } ]"""
CONFIG = f"""name: "m" backend: "python" max_batch_size: 8
    sequence_batching {{ %s {CONTROLS} }} input [ {TENSORS} ] output [ {TENSORS} ]"""
DIRECT, OLDEST = "direct {}", "oldest { max_candidate_sequences: 8 }"


class Scene:
    """A server with a sequence model whose requests have been learned."""

    def __init__(self, strategy: str = OLDEST) -> None:
        self.service = Service()
        self.loop = self.service.loop
        text = CONFIG % strategy
        spec = spec_from_config(normalise_config(config_from_text(text, "config.pbtxt")), 1)
        self.model = Model(spec, self.loop, is_bound=True)
        self.instance = DoublingInstance("m_0", self.model, added=added_input_names(spec))
        self.service.engine.add(self.model)
        self.service.engine.set_ready(self.model)
        self.model.add_instance(self.instance)
        self.loop.run()
        for _ in range(LEARNED_AFTER + 1):
            self.answers(request(1, 9, start=True, end=True))
        # Each length of a body has a head, whose first request tells what the later ones are like.
        self.answers(request(1, 9, start=True), request(1, 9), request(1, 9, end=True))
        self.answers(request(1, 8, start=True, end=True), request(1, 9, start=True, end=True))

    def send(self, *requests: bytes):
        """Let requests of new clients arrive in one iteration of the event loop."""
        clients = [self.service.connect() for _ in requests]
        for client, each in zip(clients, requests, strict=True):
            connection = client.connection
            connection.get_buffer(-1)[: len(each)] = each
            connection.buffer_updated(len(each))
        self.loop.run()
        return clients

    def finish(self) -> None:
        while self.instance.running:
            self.instance.double()
            self.loop.run()

    def answers(self, *requests: bytes):
        clients = self.send(*requests)
        self.finish()
        return [client.answers()[0].body for client in clients]


def request(value, sequence_id, *, start=False, end=False, **more) -> bytes:
    parameters = {"sequence_id": sequence_id}
    if start:
        parameters["sequence_start"] = True
    if end:
        parameters["sequence_end"] = True
    inputs = [
        {"name": name, "shape": [1, 2], "datatype": "INT32", "data": [value, 10]} for name in "xy"
    ]
    document = {"inputs": inputs, "parameters": parameters, **more}
    return post(json.dumps(document).encode(), TARGET)


def doubled(value) -> list[int]:
    return [2 * value, 20]


def column_count(clients) -> int:
    return sum(isinstance(client.connection._exchange, ColumnExchange) for client in clients)


@pytest.fixture(params=[DIRECT, OLDEST])
def scene(request):
    return Scene(request.param)


def test_sequences_travel_as_columns(scene):
    clients = scene.send(*[request(value, value, start=True) for value in (5, 6, 7)])

    assert column_count(clients) == 3
    assert scene.instance.inputs() == {
        "x": [5, 6, 7],
        "y": [5, 6, 7],
        "START": [1, 1, 1],
        "READY": [1, 1, 1],
        "ID": [5, 6, 7],
    }
    scene.finish()
    bodies = [json.loads(client.bodies()[0]) for client in clients]
    assert [body["outputs"][0]["data"] for body in bodies] == [doubled(v) for v in (5, 6, 7)]


def test_answer_is_the_same_as_without_columns(scene):
    scene.answers(*[request(1, number, start=True) for number in (5, 6)])
    column, other = scene.answers(request(3, 5), request(3, 6))
    (single,) = scene.answers(request(3, 5, id=""))

    assert column == other == single


def test_requests_of_one_sequence_run_one_after_the_other(scene):
    before = len(scene.instance.frames)
    clients = scene.send(request(5, 5, start=True), request(6, 5), request(7, 5, end=True))
    scene.finish()

    assert [frame.rows for frame in scene.instance.frames[before:]] == [[1], [1], [1]]
    assert [client.statuses() for client in clients] == [[200]] * 3


def test_null_requests_stand_between_columns():
    scene = Scene(DIRECT)
    scene.answers(*[request(1, number, start=True) for number in (5, 6, 7)])
    clients = scene.send(request(3, 7), request(4, 5))

    assert scene.instance.inputs() == {
        "x": [4, 0, 3],
        "y": [4, 0, 3],
        "START": [0, 0, 0],
        "READY": [1, 0, 1],
        "ID": [5, 0, 7],
    }
    scene.finish()
    bodies = [json.loads(client.bodies()[0]) for client in clients]
    assert [body["outputs"][0]["data"] for body in bodies] == [doubled(3), doubled(4)]
    assert scene.model.statistics.pending_count == 0
    assert not scene.model.is_busy


@pytest.mark.parametrize("more", [{}, {"id": "r"}], ids=["columns", "with another request"])
def test_rows_of_null_requests_are_counted(more):
    scene = Scene(DIRECT)
    scene.answers(*[request(1, number, start=True) for number in range(1, 8)])
    scene.answers(request(3, 1), request(4, 2), request(3, 6, **more))
    batches = scene.model.statistics.batch_durations()
    sizes = {each.batch_size: each.compute_infer.count for each in batches}

    assert sizes[6] == 1  # two requests, three null requests, a request
    assert sizes[7] == 1
    assert not scene.model.is_busy


def test_columns_and_other_requests_share_a_batch(scene):
    clients = scene.send(
        request(5, 5, start=True), request(6, 6, start=True, more=1), request(7, 7, start=True)
    )
    columns = column_count(clients)
    scene.finish()
    bodies = [json.loads(client.bodies()[0]) for client in clients]

    assert columns == 2
    assert [body["outputs"][0]["data"] for body in bodies] == [doubled(v) for v in (5, 6, 7)]


@pytest.mark.parametrize(
    "mistake", [request(1, 77), request(1, "text", start=True), request(1, 0, start=True)]
)
def test_mistakes_are_answered_as_before(scene, mistake):
    (before,) = scene.answers(mistake)
    after, _ = scene.answers(mistake, request(1, 5, start=True))

    assert b"error" in before
    assert after == before


def test_abandoned_request_ends_its_sequence(scene):
    scene.send(request(1, 5, start=True))
    waiting, _ = scene.send(request(2, 5), request(1, 6, start=True))
    waiting.connection.connection_lost(None)
    scene.loop.run()
    scene.finish()
    (later,) = scene.answers(request(3, 5))

    assert b"must specify the START flag" in later
    assert not scene.model.is_busy
