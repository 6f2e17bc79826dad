# SPDX-License-Identifier: Apache-2.0
"""Requests of users: they are recorded as clients send them, and sent again with other ids."""

from __future__ import annotations

import shutil
import socket
import threading

import hpack
import pytest
from tritonclient.grpc import service_pb2

from benchmarks import servers, user_loads, user_requests
from benchmarks.__main__ import chosen_forms
from benchmarks.grpc_loads import framed
from benchmarks.recorded_requests import GrpcCall, last_http_request, recording
from benchmarks.user_requests import FORMS, HOLE, SMALL_FORMS, USER_MODELS
from tests.free_ports import first_of_free_ports

METADATA = [
    (":method", "POST"), (":scheme", "http"), (":path", "/p"), (":authority", "localhost"),
    ("te", "trailers"), ("grpc-timeout", "5S"), ("traceparent", f"00-{HOLE}"), ("k", "v" * 300),
]  # fmt: skip
HTTP_REQUEST = b"POST / HTTP/1.1\r\nHost: h:1\r\nContent-Length: 10\r\n\r\n"
SMALL = {"seconds": 1, "connections": 2}


@pytest.fixture(scope="module")
def server():
    port = first_of_free_ports(3)
    models = {*USER_MODELS, *user_requests.COMPOSED_MODELS}
    with servers.running(servers.repository(None, models, port), port) as server:
        yield server


@pytest.fixture(scope="module")
def bound_server():
    port = first_of_free_ports(3)
    system = servers.known_systems(None, port)[0]
    with servers.running(servers.with_users_models(system, USER_MODELS, 2), port) as server:
        yield server


def test_a_relay_keeps_the_last_request_with_a_body():
    listener = socket.create_server(("127.0.0.1", 0))

    def answer():
        connection, _ = listener.accept()
        with connection:
            while connection.recv(4096):
                connection.sendall(b"ok")

    server = threading.Thread(target=answer)
    server.start()
    with (
        listener,
        recording(listener.getsockname()[1]) as relay,
        socket.create_connection(("127.0.0.1", relay.port)) as client,
    ):
        for request in (b"GET / HTTP/1.1\r\n\r\n", HTTP_REQUEST + b"0123456789"):
            client.sendall(request)
            assert client.recv(2) == b"ok"
    server.join()

    assert last_http_request(relay) == HTTP_REQUEST + b"0123456789"


def test_requests_go_to_the_default_port_as_if_there_were_no_relay():
    assert user_loads.http_file(HTTP_REQUEST) == HTTP_REQUEST.replace(b"h:1", b"h:8000")


def test_header_blocks_refer_to_what_the_first_one_had():
    first, later = user_loads.header_blocks(METADATA)
    decoder = hpack.Decoder()

    assert list(decoder.decode(first)) == METADATA
    assert list(decoder.decode(later)) == METADATA
    assert list(decoder.decode(later)) == METADATA  # users' metadata was not remembered
    assert len(later) < len(first)


def test_an_id_becomes_a_hole():
    body = b'{"id":"7","inputs":[]}....'
    head = b"POST / HTTP/1.1\r\nInference-Header-Content-Length: 22\r\nContent-Length: 26\r\n\r\n"

    request = user_requests.http_with_hole(head + body)

    assert request.endswith(b'{"id":"@@@@@@@@","inputs":[]}....')
    assert b"Header-Content-Length: 29\r\nContent-Length: 33\r\n" in request


def test_a_request_without_an_id_has_no_place_for_a_hole():
    with pytest.raises(ValueError, match="expected a request with an id"):
        user_requests.http_with_hole(HTTP_REQUEST + b"0123456789")


def test_a_call_gets_a_hole_as_its_id():
    message = framed(service_pb2.ModelInferRequest(model_name="m", id="1"))

    call = user_requests.grpc_with_hole(GrpcCall(METADATA, message))

    assert service_pb2.ModelInferRequest.FromString(call.message[5:]).id == HOLE
    assert call.message[4] == len(call.message) - 5


def test_unknown_forms_are_refused():
    assert chosen_forms("binary,bls") == ["binary", "bls"]
    with pytest.raises(Exception, match=r"expected some of binary, .*, got other"):
        chosen_forms("binary,other")


@pytest.mark.e2e
@pytest.mark.parametrize("key", FORMS)
def test_all_forms_get_right_answers_from_a_repository(server, key):
    form = FORMS[key]

    requests = user_requests.record(server, form)

    assert len(requests) == len(form.examples)
    texts = [repr(request) for request in requests]
    has_hole = "request_id" in form.options or "model_client" in key
    assert all((HOLE in text) == has_hole for text in texts)


@pytest.mark.e2e
@pytest.mark.parametrize("form", SMALL_FORMS, ids=lambda form: form.key)
def test_small_forms_get_right_answers_from_functions(bound_server, form):
    assert user_requests.record(bound_server, form)


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("wrk") is None, reason="needs wrk")
@pytest.mark.parametrize("key", ["binary", "headers", "shapes", "json"])
def test_recorded_requests_are_sent_by_wrk(bound_server, tmp_path, key):
    files = user_loads.recorded_files(bound_server, FORMS[key], tmp_path)

    report = user_loads.send(bound_server, FORMS[key], files, **SMALL)

    assert report.requests == report.calls > 0


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a compiler")
@pytest.mark.parametrize("key", ["grpc_client", "grpc_all", "grpc_shapes"])
def test_recorded_calls_are_sent_by_their_generator(bound_server, tmp_path, key):
    files = user_loads.recorded_files(bound_server, FORMS[key], tmp_path)

    report = user_loads.send(bound_server, FORMS[key], files, **SMALL)

    assert report.calls > report.requests > 0
    assert report.bytes > 30 * report.requests


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a compiler")
def test_refused_calls_are_no_figures(bound_server, tmp_path):
    form = FORMS["grpc_client"]
    (file,) = user_loads.recorded_files(bound_server, form, tmp_path)
    file.write_bytes(file.read_bytes().replace(b"AddSub", b"NoSuch"))

    with pytest.raises(RuntimeError, match="requests failed"):
        user_loads.send(bound_server, form, [file], **SMALL)
