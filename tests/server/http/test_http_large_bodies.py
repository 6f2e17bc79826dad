# SPDX-License-Identifier: Apache-2.0
"""Large bodies over HTTP, read and written beside the event loop: the answers of small ones."""

from __future__ import annotations

import asyncio
import errno
import gzip
import json

import numpy as np
import pytest

from pytriton.base import dtypes
from pytriton.base.messages import InferTensor
from pytriton.serving.server.api.background import SMALL_BYTES, LoopBudget
from pytriton.testing import FakeEventLoop
from tests.server.control_fakes import ENTRIES, FakeControl
from tests.server.http_fakes import get, post
from tests.server.http_models import (
    INFER,
    HeldBackground,
    Service,
    ask,
    error,
    floats,
    infer_body,
    text,
)

GENERATE = b"/v2/models/double/generate"
STREAM = b"/v2/models/stream/generate_stream"
MANY = list(range(100_000))
GZIP = b"Content-Encoding: gzip"


@pytest.fixture
def service():
    return Service()


def sent(service):
    request = service.double.inferences[0].request
    return np.frombuffer(request.inputs["x"].data, np.float32).tolist()


def test_small_body_takes_no_thread(service):
    service.connect().send(post(infer_body(1, 2), INFER))
    service.double.answer(floats(1))
    service.connect().send(post(gzip.compress(infer_body(1, 2)), INFER, GZIP))

    assert len(service.double.inferences) == 2
    assert service.background.count == 0


@pytest.mark.parametrize("pack,lines", [(bytes, ()), (gzip.compress, (GZIP,))])
def test_large_json_is_read_beside_the_loop(service, pack, lines):
    service.connect().send(post(pack(infer_body(*MANY)), INFER, *lines))

    assert sent(service) == MANY
    assert service.background.count == 1 + len(lines)


def test_large_generate_request_is_read_beside_the_loop(service):
    service.connect().send(post(json.dumps({"x": MANY}).encode(), GENERATE))

    assert service.background.count == 1


@pytest.mark.parametrize("body", [infer_body(1), infer_body(*MANY)], ids=["small", "large"])
def test_request_for_which_there_is_no_memory_gets_503(service, monkeypatch, caplog, body):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr("pytriton.serving.server.http.bodies.parse_infer", fail)
    monkeypatch.setattr(service.background, "run", fail)
    answer = ask(service, post(body, INFER))

    assert (answer.status, error(answer)) == (503, "the server has no memory left")
    assert "MemoryError" not in caplog.text


def test_answer_for_which_there_is_no_memory_is_503(service, monkeypatch):
    client = service.connect().send(post(infer_body(1, 2), INFER))

    def fail(*_):
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(service.background, "run", fail)
    service.double.answer(floats(*MANY))
    client.loop.run()
    (answer,) = client.answers()

    assert (answer.status, error(answer)) == (503, "the server has no memory left")


def test_binary_tensor_behind_small_json_is_a_part_of_the_body(service):
    size = 4 * len(MANY)
    entry = {
        "name": "x", "shape": [1, len(MANY)], "datatype": "FP32",
        "parameters": {"binary_data_size": size},
    }  # fmt: skip
    head = json.dumps({"inputs": [entry]}).encode()
    length = b"Inference-Header-Content-Length: %d" % len(head)
    body = head + np.array(MANY, np.float32).tobytes()

    service.connect().send(post(body, INFER, length))
    assert service.background.count == 0
    service.connect().send(post(gzip.compress(body), INFER, length, GZIP))

    assert service.background.count == 1
    for request in [each.request for each in service.double.inferences]:
        assert isinstance(request.inputs["x"].data, memoryview)
        assert np.frombuffer(request.inputs["x"].data, np.float32).tolist() == MANY


@pytest.mark.parametrize(
    "body,status,words",
    [
        (b" " * SMALL_BYTES * 2, 500, f"The document is empty. at {SMALL_BYTES * 2}"),
        (b"[" + b"{}," * 200_000 + b"{}]", 400, "expected at most 100000 objects"),
        (b'{"inputs":[' + b" " * SMALL_BYTES, 500, "Invalid value. at"),
    ],
)
@pytest.mark.parametrize("pack,lines", [(bytes, ()), (gzip.compress, (GZIP,))])
def test_large_nonsense_is_refused(service, body, status, words, pack, lines):
    answer = ask(service, post(pack(body), INFER, *lines))

    assert answer.status == status
    assert words in error(answer)


@pytest.mark.parametrize(
    "path", [b"/v2/repository/index", b"/v2/repository/models/m/unload", b"/v2/trace/setting"]
)
@pytest.mark.parametrize("pack,lines", [(bytes, ()), (gzip.compress, (GZIP,))])
def test_large_settings_are_refused_unread(path, pack, lines):
    service = Service(control=FakeControl(*ENTRIES))

    answer = ask(service, post(pack(b" " * (2 << 20)), path, *lines))

    assert answer.status in (400, 500)
    assert error(answer)
    assert service.background.count == 0


def test_large_answer_is_written_beside_the_loop(service):
    client = service.connect()
    client.send(post(infer_body(1), INFER))
    service.double.answer(floats(*MANY))

    (answer,) = client.answers()
    assert service.background.count == 1
    assert json.loads(answer.body)["outputs"][0]["data"] == MANY


def test_large_answer_is_compressed_beside_the_loop(service):
    client = service.connect()
    body = infer_body(1, parameters={"binary_data_output": True})
    client.send(post(body, INFER, b"Accept-Encoding: gzip"))
    tensor = floats(*MANY)
    service.double.answer(tensor)

    (answer,) = client.answers()
    assert service.background.count == 1
    length = int(answer.headers[b"Inference-Header-Content-Length"])
    assert gzip.decompress(answer.body)[length:] == tensor.data


def test_large_binary_answer_is_sent_at_once(service):
    client = service.connect()
    client.send(post(infer_body(1, parameters={"binary_data_output": True}), INFER))
    service.double.answer(floats(*MANY))

    assert len(client.answers()) == 1
    assert service.background.count == 0


def test_large_answer_that_cannot_be_written_is_an_error(service):
    client = service.connect()
    client.send(post(infer_body(1), INFER))
    service.double.answer(InferTensor("y", dtypes.FP32, (1, 3), bytes(2 * SMALL_BYTES)))

    (answer,) = client.answers()
    assert answer.status == 500
    assert "output tensor shape does not match" in error(answer)


def test_large_generate_answer_is_written_beside_the_loop(service):
    client = service.connect()
    client.send(post(b'{"x":[1]}', GENERATE))
    service.double.answer(floats(*MANY))

    (answer,) = client.answers()
    assert service.background.count == 1
    assert json.loads(answer.body)["y"] == MANY


def events(answer):
    return [json.loads(event[6:]) for event in answer.body.split(b"\n\n") if event]


@pytest.fixture
def held():
    """A service with a real loop whose background waits for the test."""
    loop = FakeEventLoop()
    asyncio.set_event_loop(loop)
    service = Service(loop=loop, background=HeldBackground())
    yield service
    service.api.close()
    loop.run()
    asyncio.set_event_loop(None)
    loop.close()


def test_events_keep_their_order_while_a_large_one_is_written(held):
    client = held.connect()
    client.send(post(b'{"prompt":"a"}', STREAM))
    held.loop.run()
    large = "b" * 2 * SMALL_BYTES
    for content in ("a", large, "c", large + "d"):
        held.stream.answer(text(content), final=False)
    held.stream.answer()
    held.loop.run()
    (first,) = held.background.waiting
    first.set_result(None)
    held.loop.run()
    held.background.waiting[1].set_result(None)
    held.loop.run()

    (answer,) = client.answers()
    assert [event["text"] for event in events(answer)] == ["a", large, "c", large + "d"]


def test_pipelined_requests_wait_for_a_large_one(held):
    client = held.connect()
    client.send(post(infer_body(*MANY), INFER) + get(b"/v2/health/live"))
    held.loop.run()
    assert client.answers() == []
    other = ask(held, get(b"/v2/health/live"))
    held.background.waiting[0].set_result(None)
    held.loop.run()
    held.double.answer(floats(1))
    held.loop.run()

    assert other.status == 200
    assert [len(answer.body) > 0 for answer in client.answers()] == [True, False]


def test_request_of_a_client_that_left_is_not_begun(held):
    client = held.connect()
    client.send(post(infer_body(*MANY), INFER))
    held.loop.run()
    client.transport.close()
    held.loop.run()

    assert held.background.waiting[0].cancelled()
    assert held.double.inferences == []


def test_answer_to_a_client_that_left_is_dropped(held):
    client = held.connect()
    client.send(post(infer_body(1), INFER))
    held.loop.run()
    held.double.answer(floats(*MANY))
    held.loop.run()
    client.transport.close()
    held.loop.run()
    held.background.waiting[0].set_result(None)
    held.loop.run()

    assert client.answers() == []


class FullBudget(LoopBudget):
    """The budget of an iteration that has done enough already."""

    def __init__(self, loop) -> None:
        super().__init__(loop)
        self.count = 0

    def is_free(self) -> bool:
        return False

    async def run(self, work):
        self.count += 1
        return await super().run(work)


@pytest.fixture
def full_service():
    service = Service(loop=FakeEventLoop())
    service.budget = service.api._bodies._loop_budget = FullBudget(service.loop)
    yield service
    service.loop.close()


@pytest.mark.parametrize("pack,lines", [(bytes, ()), (gzip.compress, (GZIP,))])
@pytest.mark.parametrize("length,turns", [(10, 0), (10_000, 1)])
def test_request_of_medium_size_waits_for_its_turn(full_service, pack, lines, length, turns):
    """Many of them at once would otherwise delay everybody else by their sum."""
    full_service.connect().send(post(pack(infer_body(*range(length))), INFER, *lines))
    full_service.loop.run()

    assert sent(full_service) == list(range(length))
    assert full_service.budget.count == turns


def test_generate_request_of_medium_size_waits_for_its_turn(full_service):
    body = json.dumps({"x": list(range(10_000))}).encode()
    full_service.connect().send(post(body, GENERATE))
    full_service.loop.run()

    assert sent(full_service) == list(range(10_000))
    assert full_service.budget.count == 1


def test_mistake_in_a_request_of_medium_size_is_answered(full_service):
    client = full_service.connect()
    client.send(post(b" " * 20_000 + b"{", INFER))
    full_service.loop.run()
    (answer,) = client.answers()

    assert answer.status == 500
    assert "failed to parse the request JSON buffer" in error(answer)
    assert full_service.budget.count == 1


@pytest.mark.parametrize("length,turns", [(10, 0), (10_000, 1)])
def test_json_response_of_medium_size_waits_for_its_turn(full_service, length, turns):
    client = full_service.connect()
    client.send(post(infer_body(1), INFER))
    full_service.double.answer(floats(*range(length)))
    full_service.loop.run()
    (answer,) = client.answers()

    assert json.loads(answer.body)["outputs"][0]["data"] == list(range(length))
    assert full_service.budget.count == turns


def test_binary_response_of_medium_size_is_sent_at_once(full_service):
    client = full_service.connect()
    client.send(post(infer_body(1, parameters={"binary_data_output": True}), INFER))
    full_service.double.answer(floats(*range(10_000)))
    (answer,) = client.answers()

    assert answer.status == 200
    assert full_service.budget.count == 0
