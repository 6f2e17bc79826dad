# SPDX-License-Identifier: Apache-2.0
"""The generate endpoints and server-sent events, over a real engine."""

from __future__ import annotations

import json
import logging

import pytest

from pytriton.base.errors import InternalError, InvalidArgumentError, UnavailableError
from pytriton.base.messages import InferTensor
from pytriton.protocol.generate import NOT_ONE_RESPONSE
from pytriton.serving.server.http.generate import accepts_events
from tests.bursts import texts_burst
from tests.fake_network import HIGH_WATER_BYTES
from tests.server.http_fakes import get, post
from tests.server.http_models import Service, floats, text

GENERATE = b"/v2/models/stream/generate"
STREAM = b"/v2/models/stream/generate_stream"
PROMPT = b'{"prompt": "hi", "temperature": 0.5}'
EVENT_TYPE = b"text/event-stream; charset=utf-8"


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def client(service):
    return service.connect()


def events(body: bytes) -> list[dict]:
    assert body == b"" or body.endswith(b"\n\n")
    lines = body.split(b"\n\n")[:-1]
    assert all(line.startswith(b"data: ") for line in lines)
    return [json.loads(line.removeprefix(b"data: ")) for line in lines]


def event(value: str) -> dict:
    return {"model_name": "stream", "model_version": "1", "text": value}


# generate


def test_generate_of_a_function_that_streams_names_the_right_route(service, client):
    service.annotate("stream")
    client.send(post(b'{"prompt": "hi"}', GENERATE))
    service.stream.answer(text("one"), final=False)
    service.stream.answer(text("two"), final=False)
    client.loop.run()

    (answer,) = client.answers()
    assert answer.status == 400
    assert json.loads(answer.body)["error"] == (
        "generate takes exactly one answer, and model 'stream' streams its answers: ask "
        "/v2/models/stream/generate_stream"
    )


@pytest.mark.parametrize("ends_apart", [False, True])
def test_generate_answers_one_response_with_one_object(service, client, ends_apart):
    client.send(post(PROMPT, GENERATE) + get(b"/v2/health/live"))
    service.stream.answer(text("hello"), final=not ends_apart)
    if ends_apart:
        assert client.received == b""
        service.stream.answer()
    client.loop.run()

    first, second = client.answers()
    assert first.status == second.status == 200
    assert first.headers[b"Content-Type"] == b"application/json"
    assert json.loads(first.body) == event("hello")
    assert service.stream.inferences[0].request.fields.parameters == {"temperature": 0.5}


def test_generate_works_for_coupled_models(service, client):
    client.send(post(b'{"x": [1, 2], "id": "seven"}', b"/v2/models/double/generate"))
    service.double.answer(floats(2, 4))

    document = json.loads(client.bodies()[0])
    assert document["y"] == [2.0, 4.0]
    assert document["id"] == "seven"


def test_generate_refuses_a_model_that_says_nothing(service, client):
    client.send(post(PROMPT, GENERATE))
    service.stream.answer()

    assert client.statuses() == [500]
    assert json.loads(client.bodies()[0]) == {"error": NOT_ONE_RESPONSE}


def test_generate_stops_a_model_that_says_more_than_one_thing(service, client):
    client.send(post(PROMPT, GENERATE) + get(b"/v2/health/live"))
    for _ in range(3):
        service.stream.answer(text("hello"), final=False)
    service.stream.answer()
    client.loop.run()

    assert client.statuses() == [500, 200]
    assert json.loads(client.bodies()[0]) == {"error": NOT_ONE_RESPONSE}
    assert service.stream.cancelled == service.stream.inferences


def test_generate_refuses_a_model_that_ends_with_a_second_response(service, client):
    client.send(post(PROMPT, GENERATE))
    service.stream.answer(text("one"), final=False)
    service.stream.answer(text("two"))

    assert client.statuses() == [500]
    assert service.stream.cancelled == []


def test_generate_answers_an_error_of_the_model_with_its_status(service, client):
    client.send(post(PROMPT, GENERATE))
    service.stream.fail(UnavailableError("busy"))

    assert client.statuses() == [503]
    assert json.loads(client.bodies()[0]) == {"error": "busy"}


def test_generate_stops_a_model_that_may_say_more_after_an_error(service, client):
    client.send(post(PROMPT, GENERATE))
    service.stream.inferences[0].sink.on_error(UnavailableError("busy"), final=False)
    service.stream.answer(text("late"))

    assert client.statuses() == [503]
    assert service.stream.cancelled == service.stream.inferences


def test_generate_answers_a_response_that_cannot_be_written(service, client, caplog):
    client.send(post(PROMPT, GENERATE))
    with caplog.at_level(logging.ERROR):
        service.stream.answer(InferTensor("text", text("").dtype, (1,), None))

    assert client.statuses() == [500]
    assert "it delivered a response" in caplog.text


@pytest.mark.parametrize("path", [GENERATE, STREAM])
@pytest.mark.parametrize(
    "request_lines,body,status,words",
    [
        ((), b"[1]", 500, "attempt to get members for non-object"),
        ((), b"{", 500, "failed to parse the request JSON buffer"),
        ((), b'{"prompt": 1}', 500, "attempt to access JSON non-string as string"),
        ((), b"{}", 400, "expected 1 inputs but got 0 inputs for model 'stream'"),
        ((b"Content-Encoding: gzip",), PROMPT, 400, "only 'identity' is supported"),
    ],
)
def test_mistake_is_answered_with_a_plain_error(client, path, request_lines, body, status, words):
    client.send(post(body, path, *request_lines))

    (answer,) = client.answers()
    assert answer.status == status
    assert answer.headers[b"Content-Type"] == b"application/json"
    assert words in json.loads(answer.body)["error"]


@pytest.mark.parametrize("action", [b"generate", b"generate_stream"])
def test_unknown_model_is_not_found(client, action):
    client.send(post(PROMPT, b"/v2/models/none/" + action))
    client.send(post(PROMPT, b"/v2/models/stream/versions/2/" + action))
    client.send(get(b"/v2/models/stream/" + action))

    assert client.statuses() == [404, 404, 405]


# generate_stream


def test_stream_sends_each_response_when_it_comes(service, client):
    client.send(post(PROMPT, STREAM) + get(b"/v2/health/live"))
    service.stream.answer(text("a"), final=False)

    assert b'"text":"a"' in client.received
    assert b'"text":"b"' not in client.received

    service.stream.answer(text("b"), final=False)
    service.stream.answer(text("c"))
    client.loop.run()

    first, second = client.answers()
    assert first.headers[b"Content-Type"] == EVENT_TYPE
    assert events(first.body) == [event("a"), event("b"), event("c")]
    assert second.status == 200


@pytest.mark.parametrize("count", [0, 1, 2, 500])
def test_stream_may_have_any_number_of_events(service, client, count):
    client.send(post(PROMPT, STREAM))
    for number in range(count):
        service.stream.answer(text(str(number)), final=False)
    service.stream.answer()

    (answer,) = client.answers()
    assert answer.status == 200
    assert [each["text"] for each in events(answer.body)] == [str(n) for n in range(count)]


def test_responses_that_come_together_are_events_of_one_write(service, client):
    client.send(post(PROMPT, STREAM))
    service.stream.answer_burst(texts_burst(["a", "bc"], name="stream"))
    client.loop.run()
    assert client.received.count(b"\r\n\r\n") == 1  # the end of the head, and no second chunk yet
    service.stream.answer_burst(texts_burst(["d"], name="stream"))
    service.stream.answer()
    client.loop.run()

    (answer,) = client.answers()
    assert answer.status == 200
    assert events(answer.body) == [event("a"), event("bc"), event("d")]


@pytest.mark.parametrize("good", [0, 2])
def test_response_that_cannot_be_written_ends_the_stream_after_those_before_it(
    service, client, good
):
    burst = texts_burst(["a"] * good + ["x"], name="stream")
    output = burst.outputs[0]
    output.data = output.data[:-5] + b"\xff\0\0\0x"  # its text is shorter than it says
    client.send(post(PROMPT, STREAM))
    service.stream.answer_burst(burst)
    client.loop.run()

    (answer,) = client.answers()
    assert answer.status == (200 if good else 500)
    sent = events(answer.body)
    assert sent[:good] == [event("a")] * good
    assert list(sent[good]) == ["error"]
    assert len(service.stream.cancelled) == 1


def test_stream_of_a_coupled_model_is_one_event(service, client):
    client.send(post(b'{"x": 1}', b"/v2/models/double/generate_stream"))
    service.double.answer(floats(2))

    assert [each["y"] for each in events(client.bodies()[0])] == [2.0]


def test_stream_that_begins_with_an_error_has_its_status(service, client):
    client.send(post(PROMPT, STREAM))
    service.stream.fail(InvalidArgumentError("no"))

    (answer,) = client.answers()
    assert answer.status == 400
    assert answer.headers[b"Content-Type"] == EVENT_TYPE
    assert events(answer.body) == [{"error": "no"}]


def test_stream_tells_an_error_that_comes_later(service, client):
    client.send(post(PROMPT, STREAM) + get(b"/v2/health/live"))
    service.stream.answer(text("a"), final=False)
    service.stream.fail(InternalError("broke\nhere"))
    client.loop.run()

    assert client.statuses() == [200, 200]
    assert events(client.bodies()[0]) == [event("a"), {"error": "broke\nhere"}]


def test_stream_that_ended_takes_no_more(service, client):
    client.send(post(PROMPT, STREAM) + post(PROMPT, STREAM))
    sink = service.stream.inferences[0].sink
    service.stream.answer(text("a"))
    client.loop.run()
    sink.on_response(None, final=True)
    sink.on_error(InternalError("late"))

    assert events(client.bodies()[0]) == [event("a")]
    assert len(client.bodies()) == 1


def test_stream_ends_with_a_response_that_cannot_be_written(service, client, caplog):
    client.send(post(PROMPT, STREAM))
    with caplog.at_level(logging.ERROR):
        service.stream.answer(InferTensor("text", text("").dtype, (1,), None), final=False)
    service.stream.answer(text("b"))

    (answer,) = client.answers()
    (only,) = events(answer.body)
    assert answer.status == 500
    assert only.keys() == {"error"}
    assert service.stream.cancelled == service.stream.inferences
    assert "it delivered a response" in caplog.text


def test_stream_goes_on_after_an_error_that_is_not_the_last_word(service, client):
    client.send(post(PROMPT, STREAM))
    request = service.stream.inferences[0]
    request.sink.on_error(InternalError("one"), final=False)
    service.stream.answer(text("b"))

    assert events(client.bodies()[0]) == [{"error": "one"}, event("b")]


def test_stream_holds_the_model_back_while_its_client_is_slow(service, client):
    client.send(post(PROMPT, STREAM))
    request = service.stream.inferences[0]
    client.transport.peer_reads = False
    service.stream.answer(text("x" * HIGH_WATER_BYTES), final=False)
    for _ in range(1000):
        service.stream.answer(text("y"), final=False)

    assert request.is_paused
    assert service.stream.granted == 0

    client.transport.peer_reads = True
    client.transport.take()

    assert not request.is_paused
    assert service.stream.granted == 1001


def test_stream_whose_client_left_is_cancelled(service, client):
    client.send(post(PROMPT, STREAM))
    service.stream.answer(text("a"), final=False)
    client.reset()
    received = bytes(client.received)
    service.stream.answer(text("b"), final=False)
    service.stream.answer()

    assert service.stream.cancelled == service.stream.inferences
    assert client.received == received


# infer with events


@pytest.mark.parametrize(
    "accept,expected",
    [
        (b"text/event-stream", True),
        (b"application/json, Text/Event-Stream;q=0.9", True),
        (b"", False),
        (b"*/*", False),
        (b"application/json", False),
        (b"text/event-stream-not", False),
    ],
)
def test_events_are_for_those_who_ask(accept, expected):
    assert accepts_events({b"accept": accept}) is expected
    assert not accepts_events({})


def infer(more: dict | None = None) -> bytes:
    tensor = {"name": "prompt", "shape": [1], "datatype": "BYTES", "data": ["hi"]}
    body = json.dumps({"id": "7", "inputs": [tensor], **(more or {})}).encode()
    return post(body, b"/v2/models/stream/infer", b"Accept: text/event-stream")


def test_infer_streams_infer_responses(service, client):
    client.send(infer())
    service.stream.answer(text("a"), final=False)
    service.stream.answer(text("b"), final=False)
    service.stream.answer()

    (answer,) = client.answers()
    assert answer.headers[b"Content-Type"] == EVENT_TYPE
    assert events(answer.body) == [
        {
            "id": "7",
            "model_name": "stream",
            "model_version": "1",
            "outputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [value]}],
        }
        for value in ("a", "b")
    ]


@pytest.mark.parametrize(
    "more",
    [
        {"parameters": {"binary_data_output": True}},
        {"outputs": [{"name": "text", "parameters": {"binary_data": True}}]},
    ],
)
def test_infer_cannot_stream_binary_data(client, more):
    client.send(infer(more))

    (answer,) = client.answers()
    assert answer.status == 400
    assert "server-sent events" in json.loads(answer.body)["error"]


def test_infer_of_a_coupled_model_is_not_a_stream(service, client):
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}
    body = json.dumps({"inputs": [tensor]}).encode()
    client.send(post(body, b"/v2/models/double/infer", b"Accept: text/event-stream"))
    service.double.answer(floats(2))

    assert client.answers()[0].headers[b"Content-Type"] == b"application/json"
