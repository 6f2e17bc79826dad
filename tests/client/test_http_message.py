# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from pytriton.client.exceptions import PyTritonClientValueError
from pytriton.client.http_message import HttpAnswer, request_head

HEAD = b"HTTP/1.1 200 OK\r\n"


def answer_to(*pieces):
    answer = HttpAnswer()
    for piece in pieces:
        answer.feed(piece)
    return answer


def test_request_head_is_written():
    head = request_head("POST", "/v2", "h:1", {"A": 1, "b": "x"})

    assert head == b"POST /v2 HTTP/1.1\r\nHost: h:1\r\nA: 1\r\nb: x\r\n\r\n"


@pytest.mark.parametrize("headers", [{"a": "x\r\nb: y"}, {"a\n": "x"}])
def test_header_cannot_smuggle_another(headers):
    with pytest.raises(PyTritonClientValueError, match="one line each"):
        request_head("GET", "/", "h", headers)


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a: b", "ä"])
def test_header_with_an_impossible_name_is_refused(name):
    with pytest.raises(PyTritonClientValueError, match="Expected names of headers"):
        request_head("GET", "/", "h", {name: "x"})


@pytest.mark.parametrize("name", ["Host", "host", "HOST"])
def test_host_that_is_given_wins(name):
    head = request_head("GET", "/", "h:1", {"a": 1, name: "model.example.com"})

    assert head == f"GET / HTTP/1.1\r\na: 1\r\n{name}: model.example.com\r\n\r\n".encode()


def test_header_outside_latin_1_is_refused():
    with pytest.raises(PyTritonClientValueError, match="Latin-1, got '→'"):
        request_head("GET", "/", "h", {"a": "→"})


def test_answer_is_read_byte_by_byte():
    text = HEAD + b"Content-Length: 2\r\nX-Name: v\r\n\r\nok"

    answer = answer_to(*(text[i : i + 1] for i in range(len(text))))

    assert (answer.is_complete, answer.is_last) == (True, False)
    assert (answer.status_code, answer.headers["x-name"], answer.body) == (200, "v", b"ok")


@pytest.mark.parametrize("step", [1, 1000])
def test_interim_answers_are_not_the_answer(step):
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
    text = interim + HEAD + b"Content-Length: 2\r\n\r\nok"

    answer = answer_to(interim)
    assert not answer.is_complete
    answer = answer_to(*(text[i : i + step] for i in range(0, len(text), step)))

    assert answer.is_complete
    assert (answer.status_code, answer.headers) == (200, {"content-length": "2"})
    assert answer.body == b"ok"


def test_interim_answer_alone_is_not_complete():
    with pytest.raises(ConnectionError, match="before its answer was complete"):
        answer_to(b"HTTP/1.1 103 Early Hints\r\n\r\n", b"")


def test_answer_of_a_grpc_server_is_called_that():
    with pytest.raises(ConnectionError, match="such ports need an address with grpc://"):
        answer_to(b"\x00\x00\x18\x04\x00\x00\x00\x00\x00" + bytes(24))


def test_answer_in_chunks_is_joined():
    answer = answer_to(HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")

    assert (answer.is_complete, answer.body) == (True, b"abc")


def test_answer_without_length_ends_with_its_connection():
    answer = answer_to(HEAD + b"\r\nab", b"c")
    assert not answer.is_complete

    answer.feed(b"")

    assert (answer.is_complete, answer.is_last, answer.body) == (True, True, b"abc")


def test_answer_that_closes_its_connection_is_the_last():
    assert answer_to(HEAD + b"Connection: close\r\nContent-Length: 0\r\n\r\n").is_last


def test_rest_of_a_body_goes_where_it_stays():
    answer = answer_to(HEAD + b"Content-Length: 5\r\n\r\nab")

    rest = answer.rest()
    rest[:] = b"cde"

    assert (answer.is_complete, answer.body) == (True, b"abcde")


@pytest.mark.parametrize("start", [b"", HEAD, HEAD + b"Content-Length: 5\r\n\r\na", HEAD + b"\r\n"])
def test_answer_without_a_known_rest_has_none(start):
    answer = HttpAnswer()
    if start:
        answer.feed(start)

    has_length = b"Content-Length" in start
    assert (answer.rest() is not None) == has_length


@pytest.mark.parametrize(
    "start",
    [
        b"",
        HEAD,
        HEAD + b"Content-Length: 5\r\n\r\na",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2",
    ],
)
def test_answer_cut_short_is_an_error(start):
    answer = HttpAnswer()
    if start:
        answer.feed(start)

    with pytest.raises(ConnectionError, match="before its answer was complete"):
        answer.feed(b"")


def test_something_else_than_http_is_an_error():
    with pytest.raises(ConnectionError, match=r"expected an HTTP answer, got b'SSH-2.0"):
        answer_to(b"SSH-2.0-OpenSSH\r\n\r\n")


@pytest.mark.parametrize("length", [2**50, 2**63])
def test_answer_that_no_memory_holds_is_an_error(length):
    answer = answer_to(HEAD + b"Content-Length: %d\r\n\r\n" % length)

    with pytest.raises(ConnectionError, match=f"got one of {length} bytes"):
        answer.rest()
