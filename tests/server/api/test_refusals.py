# SPDX-License-Identifier: Apache-2.0
"""Requests for inference that front ends refuse: they are noted, once, and without secrets."""

from __future__ import annotations

import json

import pytest

from pytriton.serving.engine.failures import REFUSED
from pytriton.serving.server.api.authorization import RestrictedGroup
from pytriton.serving.server.options.server_options import ClientLimits, ServerOptions
from tests.server.grpc_fakes import GrpcClient, infer_request
from tests.server.http_fakes import chunked, get, post
from tests.server.http_models import INFER, Service, ask
from tests.server.openai.openai_service import CHAT, OpenAIService, chat, embeddings
from tests.wire.http2.frame_client import data

SECRET = RestrictedGroup(apis=("inference", "statistics"), header="X-Key", value="sesame")
FORBIDDEN = "This API is restricted, expecting header 'X-Key'"
BODY = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,1],"data":[1]}]}'


def noted(service) -> list[tuple[str, str, str]]:
    """The model, the kind and the message of each group, the newest first."""
    records = [each.record for each in service.engine.failures.listed()]
    assert {each.reason for each in records} <= {REFUSED}
    return [(each.model, each.kind, each.example.message) for each in records]


def body(**members: object) -> bytes:
    return post(json.dumps(members).encode(), CHAT)


# HTTP


@pytest.mark.parametrize("action", [b"infer", b"generate", b"generate_stream"])
def test_inference_without_authorisation_is_noted_for_its_model(action):
    service = Service(http_restricted=(SECRET,))
    answer = ask(service, post(BODY, b"/v2/models/double/" + action, b"X-Key: guessed"))

    assert answer.status == 403
    assert noted(service) == [("double", "Forbidden", FORBIDDEN)]
    assert service.engine.lookup("double").statistics.refused == 1


def test_unknown_model_without_authorisation_is_noted_without_a_model():
    service = Service(http_restricted=(SECRET,))
    ask(service, post(BODY, b"/v2/models/none/infer"))

    assert noted(service) == [("", "Forbidden", FORBIDDEN)]
    assert service.engine.failures.unknown_refusals == 1


def test_other_requests_without_authorisation_are_not_noted():
    service = Service(http_restricted=(SECRET,))

    assert ask(service, get(b"/v2/models/stats")).status == 403
    assert noted(service) == []


@pytest.mark.parametrize(
    "request_bytes", [post(bytes(101), INFER), chunked(bytes(101), target=INFER)]
)
def test_body_that_is_too_large_is_noted_for_its_model(request_bytes):
    service = Service(ClientLimits(http_max_input_bytes=100))
    assert ask(service, request_bytes).status == 400
    ((model, kind, message),) = noted(service)

    assert (model, kind) == ("double", "Too large")
    assert message.startswith("request JSON size of 101 bytes exceeds the maximum")


def test_too_large_body_of_other_requests_is_not_noted():
    service = Service(ClientLimits(http_max_input_bytes=100))

    assert ask(service, post(bytes(101), b"/v2/repository/index")).status == 400
    assert noted(service) == []


def test_page_of_another_site_is_noted_without_what_its_headers_say():
    service = Service()
    request_bytes = post(BODY, INFER, b"Origin: http://private.example")
    assert ask(service, request_bytes).status == 403
    ((model, kind, message),) = noted(service)

    assert (model, kind) == ("double", "Forbidden")
    assert "private.example" not in message


def test_bytes_that_follow_a_request_and_are_none_are_not_noted():
    service = Service()
    client = service.connect()
    client.send(post(BODY, INFER)).send(b"\0\0\0\0\r\n\r\n")
    service.double.answer()
    client.deliver()

    assert noted(service) == []


# OpenAI's routes


def test_openai_request_without_authorisation_is_noted_without_a_model():
    service = OpenAIService(http_restricted=(SECRET,))

    assert ask(service, chat()).status == 401
    assert noted(service) == [("", "Forbidden", FORBIDDEN)]


def test_unknown_openai_path_without_authorisation_is_not_noted():
    service = OpenAIService(http_restricted=(SECRET,))

    assert ask(service, get(b"/v1/unknown")).status == 401
    assert noted(service) == []


@pytest.mark.parametrize(
    "request_bytes, status, note",
    [
        (chat(n="many"), 400, ("talk", "Invalid argument", "n")),
        (chat(model="none"), 404, ("", "Not found", "'none' is not found")),
        (chat(model="vectors"), 404, ("vectors", "Not found", "does not serve chat")),
        (embeddings(input=7), 400, ("vectors", "Invalid argument", "input")),
        (body(messages=[]), 400, ("", "Invalid argument", "expected the name of a model")),
        (post(b"{", CHAT), 400, ("", "Invalid argument", "")),
    ],
    ids=["member", "unknown model", "wrong route", "input", "no model", "no JSON"],
)
def test_openai_request_that_is_refused_before_the_engine_is_noted(request_bytes, status, note):
    service = OpenAIService()
    answer = ask(service, request_bytes)
    ((model, kind, message),) = noted(service)

    assert answer.status == status
    assert (model, kind) == note[:2]
    assert note[2] in message


def test_openai_note_has_no_header_but_the_id_of_the_request():
    service = OpenAIService()
    head, _, rest = chat().partition(b"\r\n")
    lines = b"\r\nContent-Encoding: squeezed\r\nX-Request-Id: mine\r\n"
    ask(service, head + lines + rest)
    (group,) = service.engine.failures.listed()

    assert group.record.example.message == "expected a body without compression"
    assert group.record.example.request_id == "mine"


def test_openai_request_that_the_engine_refuses_is_noted_once():
    service = OpenAIService()
    service.engine.refuse()
    assert ask(service, chat()).status == 503
    assert [each.record.count for each in service.engine.failures.listed()] == [1]


def test_openai_requests_about_models_are_not_noted():
    service = OpenAIService()

    assert ask(service, get(b"/v1/models/none")).status == 404
    assert noted(service) == []


# gRPC


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_call_without_authorisation_is_noted(method):
    client = GrpcClient(ServerOptions(grpc_restricted=(SECRET,)))
    client.call(method, infer_request(), ("triton-grpc-protocol-x-key", "guessed"))

    message = "This protocol is restricted, expecting header 'triton-grpc-protocol-X-Key'"
    assert client.engine.unread == [("", message)]
    assert client.engine.unread_kinds == ["Forbidden"]


def test_other_calls_without_authorisation_are_not_noted():
    client = GrpcClient(ServerOptions(grpc_restricted=(SECRET,)))
    client.call("ModelStatistics")

    assert client.engine.unread == []


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_message_that_is_too_large_is_noted(method):
    client = GrpcClient(ServerOptions(limits=ClientLimits(grpc_max_message_bytes=100)))
    stream = client.open(method)
    client.receive(data(stream, b"\0" + (101).to_bytes(4, "big") + bytes(50)))

    assert client.engine.unread == [("", "Received message larger than max (101 vs. 100)")]
    assert client.engine.unread_kinds == ["Too large"]


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_message_that_cannot_be_read_is_noted_once(method):
    client = GrpcClient()
    client.call(method, b"\xff")

    assert len(client.engine.unread) == 1


def test_too_large_message_of_other_calls_is_not_noted():
    client = GrpcClient()
    stream = client.open("ModelStatistics")
    client.receive(data(stream, b"\0" + (1 << 30).to_bytes(4, "big") + bytes(50)))

    assert client.engine.unread == []
