# SPDX-License-Identifier: Apache-2.0
"""What services send and how they read answers, without a server."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from pytriton.base.protos import service_pb2
from pytriton.client import grpc_service
from pytriton.client.http_message import HttpAnswer
from pytriton.client.http_service import AsyncioHttpService, HttpService
from pytriton.client.service import InferInput, RequestedOutput, ServiceError, query_of

LARGE = np.ones((4, 16384), np.float32)


def http_answer(body, *headers, status="200 OK"):
    answer = HttpAnswer()
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "\r\n"]
    answer.feed("\r\n".join(lines).encode() + body)
    return answer


class Connections:
    """Keeps what is asked, and gives one answer."""

    def __init__(self, answer):
        self.asked = []
        self._answer = answer

    def ask(self, *question):
        self.asked.append(question)
        return self._answer


def asked_for(answer, **request):
    connections = Connections(answer)
    found = HttpService(connections, "http://x").infer(model_name="a/b", **request)
    return found, *connections.asked[0]


def with_one_output(data):
    output = {"name": "y", "datatype": "FP32", "shape": [2], **data}
    return json.dumps({"outputs": [output]}).encode()


def test_large_array_is_sent_and_received_without_a_copy():
    head = with_one_output({"parameters": {"binary_data_size": 8}})
    answer = http_answer(
        head + np.float32([1, 2]).tobytes(), f"Inference-Header-Content-Length: {len(head)}"
    )
    found, method, path, headers, (sent, tensor) = asked_for(
        answer, inputs=[InferInput("x", "FP32", LARGE)], outputs=[RequestedOutput("y")]
    )

    assert (method, path) == ("POST", "/v2/models/a%2Fb/infer")
    assert headers == {"Inference-Header-Content-Length": str(len(sent))}
    assert np.shares_memory(np.frombuffer(tensor, np.uint8), LARGE)
    assert found["y"].tolist() == [1, 2]
    assert not found["y"].flags.owndata


class AsyncioConnections(Connections):
    async def ask(self, *question):
        return super().ask(*question)


def test_asyncio_request_has_the_array_as_it_was():
    connections = AsyncioConnections(http_answer(with_one_output({"data": [1, 2]})))
    array = LARGE.copy()
    service = AsyncioHttpService(connections, "http://x")
    asking = service.infer(model_name="m", inputs=[InferInput("x", "FP32", array)])
    array[:] = 7  # by another task, which runs first
    asyncio.run(asking)

    *_, (_, sent) = connections.asked[0]
    assert sent == LARGE.tobytes()


@pytest.mark.parametrize("data, expected", [([1, 2], [1, 2]), ([1e999, -1], [np.inf, -1])])
def test_answer_without_binary_tensors_is_read(data, expected):
    found, *_ = asked_for(http_answer(with_one_output({"data": data})), inputs=[])

    assert found["y"].tolist() == expected


@pytest.mark.parametrize("body", [b"[]", b'{"outputs": 5}', b'{"outputs": [{}]}', b"<html>"])
def test_answer_that_is_none_is_an_error_of_values(body):
    with pytest.raises(ValueError):
        asked_for(http_answer(body), inputs=[])


@pytest.mark.parametrize(
    "body, text",
    [
        (b'{"error": "no such model"}', "no such model"),
        (b"<html>Bad Gateway</html>\n", "HTTP status 502: <html>Bad Gateway</html>"),
        (b"", "HTTP status 502"),
        (b"[1]", "HTTP status 502: [1]"),
    ],
)
def test_refusal_has_the_text_of_the_server(body, text):
    with pytest.raises(ServiceError) as raised:
        asked_for(http_answer(body, status="502 Oh"), inputs=[])

    assert (raised.value.message(), raised.value.status()) == (text, "502")


@pytest.mark.parametrize("name", ["headers", "binary_data_output", "triton_own"])
def test_parameter_that_the_protocol_needs_is_refused(name):
    with pytest.raises(ServiceError, match=f'Parameter "{name}" is a reserved parameter'):
        query_of("m", [], parameters={name: 1})


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({}, {}),
        ({"sequence_end": True}, {}),  # of no sequence
        (
            {"sequence_id": "s", "sequence_start": True},
            {"sequence_id": "s", "sequence_start": True, "sequence_end": False},
        ),
        ({"priority": 2, "timeout": 0}, {"priority": 2, "timeout": 0}),
    ],
)
def test_settings_of_the_server_are_parameters_of_the_request(settings, expected):
    question = query_of("m", [], parameters={"mine": "1"}, **settings)

    assert question.parameters == {**expected, "mine": "1"}


def test_message_has_all_of_a_request():
    message = grpc_service.message_of(
        {
            "model_name": "m",
            "model_version": "2",
            "inputs": [InferInput("x", "BYTES", np.array([b"ab", "c"], object))],
            "outputs": [RequestedOutput("y")],
            "request_id": "7",
            "parameters": {"mine": True},
        }
    )

    assert message == service_pb2.ModelInferRequest(
        model_name="m",
        model_version="2",
        id="7",
        inputs=[{"name": "x", "datatype": "BYTES", "shape": [2]}],
        outputs=[{"name": "y"}],
        parameters={"mine": service_pb2.InferParameter(bool_param=True)},
        raw_input_contents=[b"\x02\x00\x00\x00ab\x01\x00\x00\x00c"],
    )
