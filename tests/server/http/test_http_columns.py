# SPDX-License-Identifier: Apache-2.0
"""Infer requests that travel as columns: clients see the same as without columns."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from pytriton.base.messages import RequestPath
from pytriton.serving.engine.config import config_from_text, normalise_config, spec_from_config
from pytriton.serving.engine.model import Model
from pytriton.serving.server.http import columns
from pytriton.serving.server.http.columns import (
    LEARNED_AFTER,
    MAX_BODY_BYTES,
    MAX_TRIED,
    ColumnExchange,
)
from pytriton.serving.server.tracing.settings import TraceSampling
from tests.column_rig import DoublingInstance
from tests.fakes import SelectiveTracing
from tests.server.http_fakes import Client, chunked, post
from tests.server.http_models import Service

TARGET = b"/v2/models/m/infer"
INPUTS = (
    '{ name: "x" data_type: TYPE_%s dims: [ 2 ] }, { name: "y" data_type: TYPE_INT32 dims: [ 2 ] }'
)
CONFIG = f"""name: "m" backend: "python" max_batch_size: %d %s
    input [ {INPUTS} ] output [ {INPUTS} ]"""


class Scene:
    """A server with a model that doubles, and clients whose requests arrive at the same time."""

    def __init__(
        self,
        more: str = "dynamic_batching {}",
        size: int = 64,
        dtype: str = "INT32",
        tracing: SelectiveTracing | None = None,
    ):
        self.service = Service(tracing=tracing)
        self.loop = self.service.loop
        self._text = CONFIG % (size, more, dtype, dtype)
        self.dtype = dtype
        self.instance = self.serve()

    def serve(self) -> DoublingInstance:
        """Serve a new version of the model in place of the last one."""
        spec = spec_from_config(normalise_config(config_from_text(self._text, "config.pbtxt")), 1)
        self.model = Model(spec, self.loop, is_bound=True)
        instance = DoublingInstance("m_0", self.model, batching=spec.max_batch_size > 0)
        self.service.engine.add(self.model)
        self.service.engine.set_ready(self.model)
        self.model.add_instance(instance)
        self.loop.run()
        return instance

    def clients(self, count: int) -> list[Client]:
        return [self.service.connect() for _ in range(count)]

    def request(
        self, value: float, *lines: bytes, names: str = "xy", rows: int = 1, **more
    ) -> bytes:
        shape = [rows, 2] if self.model.spec.max_batch_size else [2]
        data = {"x": [value, 10] * rows, "y": [3, 4] * rows}
        kinds = {"x": self.dtype, "y": "INT32"}
        inputs = [
            {"name": name, "shape": shape, "datatype": kinds[name], "data": data[name]}
            for name in names
        ]
        return post(json.dumps({"inputs": inputs, **more}).encode(), TARGET, *lines)

    def send_together(self, clients: list[Client], requests: list[bytes]) -> None:
        """Let requests arrive in one iteration of the event loop."""
        for client, request in zip(clients, requests, strict=True):
            connection = client.connection
            connection.get_buffer(-1)[: len(request)] = request
            connection.buffer_updated(len(request))
        self.loop.run()

    def answer(self) -> None:
        while self.instance.running:
            self.instance.double()
            self.loop.run()

    def learn(self, *requests: bytes) -> None:
        """Send each request so often that the next one like it may become a column."""
        for request in requests:
            for _ in range(LEARNED_AFTER + 1):
                client = self.service.connect()
                self.send_together([client], [request])
                self.answer()
                assert client.statuses() == [200]
            # Two at a time: the requests that follow are not alone.
            self.send_together(self.clients(2), [request] * 2)
            self.answer()


def isinstance_count(clients: list[Client]) -> int:
    """How many of the clients wait for an answer from a chunk."""
    return sum(isinstance(client.connection._exchange, ColumnExchange) for client in clients)


def doubled(value: float, rows: int = 1) -> list[list[float]]:
    return [[2 * value, 20] * rows, [6, 8] * rows]


def outputs(client: Client) -> list[list[float]]:
    body = json.loads(client.bodies()[-1])
    return [output["data"] for output in body["outputs"]]


@pytest.fixture
def scene():
    """A scene whose usual requests travel as columns."""
    made = Scene()
    made.learn(made.request(5))
    return made


@pytest.mark.parametrize("dtype", ["INT32", "FP32"])
@pytest.mark.parametrize("rows", [1, 2])
def test_columns_are_answered_like_single_requests(dtype, rows):
    scene = Scene(dtype=dtype)
    scene.learn(scene.request(5, rows=rows))
    clients, single = scene.clients(4), scene.service.connect()

    scene.send_together(clients, [scene.request(value, rows=rows) for value in range(4)])
    columns = isinstance_count(clients)
    scene.answer()
    scene.send_together([single], [scene.request(3, rows=rows, id="")])
    scene.answer()

    assert columns == 4
    assert [outputs(client) for client in clients] == [doubled(value, rows) for value in range(4)]
    assert clients[3].received == single.received


def test_inputs_may_come_in_any_order():
    scene = Scene()
    scene.learn(scene.request(5, names="yx"))
    clients = scene.clients(3)
    scene.send_together(clients, [scene.request(value, names="yx") for value in range(5, 8)])
    scene.answer()

    assert [outputs(client) for client in clients] == [doubled(value) for value in range(5, 8)]


def test_model_without_batch_dimension_is_answered():
    scene = Scene(more="", size=0)
    scene.learn(scene.request(5))
    clients = scene.clients(3)

    scene.send_together(clients, [scene.request(value) for value in range(5, 8)])
    columns = isinstance_count(clients)
    scene.answer()

    assert columns == 3
    assert [outputs(client) for client in clients] == [doubled(value) for value in range(5, 8)]
    assert b'"shape":[2]' in clients[0].bodies()[0]


def test_request_of_another_structure_takes_the_ordinary_way(scene):
    clients = scene.clients(4)

    scene.send_together(
        clients,
        [
            scene.request(5),
            scene.request(6, id="7"),
            scene.request(7, b"Accept-Encoding: gzip"),
            scene.request(8, parameters={"binary_data_output": True}),
        ],
    )
    columns = isinstance_count(clients)
    scene.answer()

    assert columns == 2  # ids may differ
    assert outputs(clients[0]) == doubled(5)
    assert json.loads(clients[1].bodies()[0])["id"] == "7"
    assert b'"data":[14,20]' in gzip.decompress(clients[2].bodies()[0])
    assert clients[3].answers()[0].headers[b"Content-Type"] == b"application/octet-stream"


@pytest.mark.parametrize("text", [b"[5]", b'["x",10]', b"[5,10", b"[3000000000,10]"])
def test_mistakes_are_answered_as_before(text):
    scene = Scene()
    request = post(
        b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"INT32","data":%b},'
        b'{"name":"y","shape":[1,2],"datatype":"INT32","data":[3,4]}]}' % text,
        TARGET,
    )
    before, after = scene.service.connect(), scene.service.connect()
    before.send(request)
    scene.learn(scene.request(5))

    scene.send_together([after, *scene.clients(1)], [request, scene.request(5)])

    assert before.statuses() != [200]
    assert after.received == before.received


def test_mistake_that_repeats_is_not_learned():
    scene = Scene()
    client = scene.service.connect()

    for _ in range(3 * LEARNED_AFTER):
        client.send(scene.request(5, names="x"))

    assert client.statuses() == [400] * 3 * LEARNED_AFTER
    assert len(set(client.bodies())) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_outputs_that_json_has_no_numbers_for_are_answered(value):
    scene = Scene(dtype="FP32")
    scene.learn(scene.request(5))
    clients, single = scene.clients(2), scene.service.connect()

    def double():
        frame, arrays = scene.instance._take(None)
        scene.instance._messages[frame.batch] = (frame, message := bytearray(64))
        arrays["x"][:, 0] = value
        for ref in frame.inputs:
            message[ref.offset : ref.offset + ref.size] = arrays[ref.name].tobytes()
        scene.instance.double()

    scene.send_together(clients, [scene.request(5)] * 2)
    double()
    scene.send_together([single], [scene.request(5, id="")])
    double()

    assert single.statuses() == [200]
    assert [client.received for client in clients] == [single.received] * 2


def test_failure_of_a_batch_is_answered(scene):
    clients = scene.clients(3)

    scene.send_together(clients, [scene.request(5)] * 3)
    scene.instance.fail()

    assert [client.answers()[0].status for client in clients] == [500] * 3
    assert [client.bodies() for client in clients] == [[b'{"error":"no"}']] * 3


def test_full_queue_refuses_as_before():
    scene = Scene("dynamic_batching { default_queue_policy { max_queue_size: 1 } }")
    scene.learn(scene.request(5))
    busy, first, clients = scene.clients(1), scene.clients(1), scene.clients(2)

    scene.send_together(busy, [scene.request(5, id="")])
    scene.send_together(first, [scene.request(5, id="")])
    scene.send_together(clients, [scene.request(5), scene.request(5, id="")])

    assert clients[0].statuses() == [503]
    assert clients[0].received == clients[1].received


def test_client_that_leaves_is_cancelled(scene):
    clients = scene.clients(3)
    scene.send_together(clients, [scene.request(value) for value in range(3)])

    clients[1].reset()
    scene.answer()

    assert [position for _, position in scene.instance.cancelled] == [1]
    assert [outputs(client) for client in clients[::2]] == [doubled(0), doubled(2)]
    assert scene.model.running_count == 0


def test_client_that_leaves_before_the_end_of_the_iteration_is_cancelled(scene):
    clients = scene.clients(2)

    request = scene.request(5)
    for client in clients:
        client.connection.get_buffer(-1)[: len(request)] = request
        client.connection.buffer_updated(len(request))
    clients[0].transport.lose()
    scene.loop.run()
    scene.answer()

    assert clients[0].received == b""
    assert outputs(clients[1]) == doubled(5)
    assert not scene.model.is_busy


def test_pipelined_requests_are_answered_in_order(scene):
    clients = scene.clients(2)
    scene.send_together(clients, [scene.request(1), scene.request(2)])
    clients[0].send(scene.request(3))
    clients[0].send(scene.request(4, id="4"))

    for _ in range(3):
        scene.answer()

    answers = [json.loads(body)["outputs"][0]["data"][0] for body in clients[0].bodies()]
    assert answers == [2, 6, 8]


def test_connection_that_ends_is_closed_after_the_answer(scene):
    clients = scene.clients(2)
    scene.send_together(clients, [scene.request(5)] * 2)

    clients[0].connection.close_when_idle()
    scene.answer()

    assert clients[0].answers()[0].headers[b"Connection"] == b"close"
    assert clients[0].saw_end
    assert b"Connection" not in clients[1].answers()[0].headers


def test_request_of_a_client_that_closes_takes_the_ordinary_way():
    scene = Scene()
    scene.learn(scene.request(5), scene.request(5, b"Connection: close"))
    client = scene.service.connect()

    scene.send_together([client], [scene.request(5, b"Connection: close")])
    scene.answer()

    assert client.answers()[0].headers[b"Connection"] == b"close"
    assert client.saw_end


def test_new_model_of_the_same_name_gets_the_next_requests(scene):
    old, scene.instance = scene.instance, scene.serve()
    frames = len(old.frames)
    clients = scene.clients(2)

    scene.send_together(clients, [scene.request(5)] * 2)
    scene.answer()

    assert [outputs(client) for client in clients] == [doubled(5)] * 2
    assert len(old.frames) == frames


@pytest.mark.parametrize(
    "end, status",
    [
        (lambda scene: scene.service.engine.remove(scene.model), 404),
        (lambda scene: scene.service.engine.refuse(), 503),
    ],
    ids=["model removed", "server exits"],
)
def test_model_that_was_known_is_refused_when_it_serves_no_more(scene, end, status):
    end(scene)
    clients = scene.clients(2)

    scene.send_together(clients, [scene.request(5)] * 2)

    assert [client.answers()[0].status for client in clients] == [status, status]


def test_requests_with_a_version_are_another_chunk():
    scene = Scene()
    plain = scene.request(5)
    versioned = plain.replace(TARGET, b"/v2/models/m/versions/1/infer")
    scene.learn(plain, versioned)
    clients = scene.clients(4)

    scene.send_together(clients, [plain, versioned, plain, versioned])
    columns = isinstance_count(clients)
    (batch,) = scene.instance.tracker.running.values()
    versions = [inference.request.model_version for inference in batch.inferences]
    scene.answer()

    assert columns == 4
    assert sorted(versions) == ["", "", "1", "1"]
    assert [outputs(client) for client in clients] == [doubled(5)] * 4


def test_structures_beyond_the_limit_replace_others(monkeypatch):
    monkeypatch.setattr("pytriton.serving.server.http.columns.MAX_LEARNED", 2)
    scene = Scene()
    requests = [scene.request(5, rows=rows) for rows in range(1, 6)]
    scene.learn(*requests)
    learner = scene.service.api._learner

    learned = [form for table in learner._tables.values() for form in table.learned]

    assert [form.inputs[0].shape for form in learned] == [(5, 2)]
    clients = scene.clients(5)
    scene.send_together(clients, requests)
    scene.answer()
    assert [outputs(client) for client in clients] == [doubled(5, rows) for rows in range(1, 6)]


@pytest.mark.parametrize("more", ["dynamic_batching {}", "sequence_batching {}"])
def test_only_traced_requests_leave_the_columns(more):
    tracing = SelectiveTracing(1000)
    scene = Scene(more, tracing=tracing)
    parameters = {"parameters": {"sequence_id": 7, "sequence_start": True, "sequence_end": True}}
    members = parameters if "sequence" in more else {}
    scene.learn(scene.request(5, **members))
    assert tracing.origins == []
    tracing.sampling = TraceSampling(3, -1)
    clients = scene.clients(7)
    requests = []
    for number in range(7):
        if members:
            parameters["parameters"]["sequence_id"] = number + 1
        requests.append(scene.request(number, **members))

    scene.send_together(clients, requests)

    is_column = [isinstance(each.connection._exchange, ColumnExchange) for each in clients]
    assert is_column == [True, True, False, True, True, False, True]
    scene.answer()
    assert [outputs(client) for client in clients] == [doubled(number) for number in range(7)]
    assert [origin.protocol for origin in tracing.origins] == ["HTTP"] * 2
    assert all(origin.began_ns for origin in tracing.origins)


def test_request_of_a_client_that_traces_is_no_column():
    tracing = SelectiveTracing(1000)
    scene = Scene(tracing=tracing)
    header = b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    scene.learn(scene.request(5), scene.request(5, header))
    tracing.origins.clear()
    clients = scene.clients(4)

    scene.send_together(clients, [scene.request(5, header)] * 2 + [scene.request(5)] * 2)

    assert isinstance_count(clients) == 2
    assert len(tracing.origins) == 2


BINARY = {"parameters": {"binary_data": True}}


def binary_request(scene: Scene, value: int, **more) -> bytes:
    """A request as the official client sends it: binary tensors in both directions."""
    entries = [
        {"name": name, "shape": [1, 2], "datatype": "INT32", "parameters": {"binary_data_size": 8}}
        for name in "xy"
    ]
    outputs = [{"name": name, **BINARY} for name in "xy"]
    text = json.dumps({"inputs": entries, "outputs": outputs, **more}).encode()
    data = np.array([value, 10, 3, 4], "<i4").tobytes()
    return post(text + data, TARGET, b"Inference-Header-Content-Length: %d" % len(text))


def ordinary_answer(request: bytes) -> bytes:
    """The response of a server that has learned nothing."""
    scene = Scene()
    client = scene.service.connect()
    scene.send_together([client], [request])
    scene.answer()
    return client.received


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"id": "a"},
        {"id": 'ü"\n'},
        {"parameters": {"priority": 0, "timeout": 10**9}},
        {"parameters": {"k": 1, "text": "v"}},
        {"outputs": [{"name": "y"}]},
        {"outputs": [{"name": "y", **BINARY}, {"name": "x"}]},
        {"outputs": [], "parameters": {"binary_data_output": True}},
    ],
)
@pytest.mark.parametrize("lines", [(), (b"Accept-Encoding: gzip",)])
def test_binary_requests_travel_as_columns(more, lines):
    scene = Scene()

    def request(value: int) -> bytes:
        written = binary_request(scene, value, **more)
        for line in lines:
            written = written.replace(b"\r\n", b"\r\n" + line + b"\r\n", 1)
        return written

    scene.learn(request(5))
    clients = scene.clients(4)

    scene.send_together(clients, [request(value) for value in range(4)])
    columns = isinstance_count(clients)
    scene.answer()

    assert columns == 4
    assert [each.received for each in clients] == [ordinary_answer(request(n)) for n in range(4)]


def test_ids_and_parameters_of_columns_may_all_differ_and_reach_the_instance():
    scene = Scene()
    scene.learn(binary_request(scene, 5, id="z"))
    clients = scene.clients(3)
    before = len(scene.instance.frames)

    requests = [
        binary_request(scene, 1, id="a" * 20),
        binary_request(scene, 2, parameters={"k": 7}),
        binary_request(scene, 3, id="c", parameters={"k": 8}),
    ]
    scene.send_together(clients, requests)
    columns = isinstance_count(clients)
    (frame,) = scene.instance.frames[before:]
    scene.answer()

    assert columns == 3
    assert frame.ids == {0: "a" * 20, 2: "c"}
    assert frame.parameters == {1: {"k": 7}, 2: {"k": 8}}
    assert [each.received for each in clients] == list(map(ordinary_answer, requests))


def test_requests_of_several_forms_travel_as_columns_in_turns():
    scene = Scene()
    requests = [
        scene.request(1),
        scene.request(2, rows=2),
        binary_request(scene, 3),
        binary_request(scene, 4, id="i"),
    ]
    scene.learn(*requests)
    for _ in range(3):
        clients = scene.clients(8)
        scene.send_together(clients, requests * 2)
        columns = isinstance_count(clients)
        scene.answer()

        assert columns == 8
        assert [each.received for each in clients] == list(map(ordinary_answer, requests * 2))


@pytest.mark.parametrize("ids", [False, True])
def test_requests_of_many_shapes_in_turns_all_travel_as_columns(ids):
    scene = Scene()
    count = 2 * MAX_TRIED + 1
    requests = [scene.request(n, rows=n) for n in range(1, count)]
    if ids:
        requests = [scene.request(n, rows=n, id=str(n)) for n in range(1, count)]
    scene.learn(*requests)
    for _ in range(3):
        clients = scene.clients(len(requests))
        scene.send_together(clients, requests)
        columns = isinstance_count(clients)
        scene.answer()

        assert columns == len(requests)
        assert [each.received for each in clients] == list(map(ordinary_answer, requests))


@pytest.mark.parametrize("tail", [b"", b"1234567", b"12345678" * 2 + b"9"])
def test_binary_data_of_another_size_is_refused_as_before(tail):
    scene = Scene()
    request = binary_request(scene, 5)
    head, _, body = request.partition(b"\r\n\r\n")
    wrong = body[:-16] + tail
    wrong = head.replace(b"Content-Length: %d" % len(body), b"Content-Length: %d" % len(wrong))
    wrong += b"\r\n\r\n" + body[:-16] + tail
    scene.learn(request)
    clients = scene.clients(3)

    scene.send_together(clients, [request, wrong, request])
    scene.answer()

    expected = [ordinary_answer(each) for each in (request, wrong, request)]
    assert [each.received for each in clients] == expected
    assert clients[1].statuses() == [400]


def test_paths_of_requests_are_counted(scene):
    clients = scene.clients(4)
    scene.send_together(clients, [scene.request(5)] * 3 + [scene.request(5, b"Connection: close")])
    scene.answer()

    counts = {path: scene.model.statistics.paths[path] for path in RequestPath}
    assert counts[RequestPath.NEW] == LEARNED_AFTER
    assert counts[RequestPath.COLUMNS] >= 5
    assert counts[RequestPath.HEADERS] == 1
    assert sum(counts.values()) == LEARNED_AFTER + 1 + 2 + 4


def in_chunks(request: bytes, *more: bytes) -> bytes:
    """The same request with a body of chunks."""
    return chunked(request.partition(b"\r\n\r\n")[2], *more, target=TARGET)


def test_small_body_of_chunks_travels_as_columns(scene):
    clients = scene.clients(2)

    scene.send_together(clients, [in_chunks(scene.request(5))] * 2)
    count = isinstance_count(clients)
    scene.answer()

    assert count == 2
    assert [outputs(client) for client in clients] == [doubled(5)] * 2


def test_large_body_of_chunks_is_not_read_by_the_forms(scene, monkeypatch):
    sizes = []
    split_body = columns.split_body
    monkeypatch.setattr(
        columns,
        "split_body",
        lambda body, length: sizes.append(len(body)) or split_body(body, length),
    )
    client = scene.service.connect().send(in_chunks(scene.request(5), b" " * MAX_BODY_BYTES))
    scene.answer()

    assert outputs(client) == doubled(5)
    assert not sizes
    assert scene.model.statistics.paths[RequestPath.LARGE] == 1
