# SPDX-License-Identifier: Apache-2.0
"""Answers of HTTP/1.1, in whatever pieces they come."""

from __future__ import annotations

import pytest

from pytriton.tools.perf.load.http_connection import (
    HttpAnswerError,
    HttpAnswers,
    error_text,
    event_error,
    parse_head,
)

COUNTED = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n"
)
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n" + COUNTED
BINARY = b"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: 2\r\nContent-Length: 5\r\n\r\nhello"


def body_of(answers, data, size):
    pieces = []
    for at in range(0, len(data), size):
        assert not answers.is_whole
        pieces += answers.feed(data[at : at + size])
    return b"".join(pieces)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("data", [COUNTED, CHUNKED, INTERIM, BINARY])
def test_answer_is_read_in_pieces_of_any_size(data, size):
    answers = HttpAnswers({})
    for _ in range(2):
        body = body_of(answers, data, size)

        assert answers.is_whole
        assert body == b"hello"
        assert answers.head.status == 200
        answers.next()


def test_answer_that_came_before_is_known_by_its_head_and_length():
    answers = HttpAnswers({})
    answers.feed(COUNTED)

    assert COUNTED.startswith(answers.known)
    assert len(COUNTED) == answers.known_bytes


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 500 Oh\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx",
        CHUNKED,
    ],
)
def test_other_answers_are_not_known_by_their_length(data):
    answers = HttpAnswers({})
    answers.feed(data)

    assert answers.is_whole
    assert answers.known_bytes == -1


def test_body_without_a_length_ends_with_the_connection():
    answers = HttpAnswers({})
    pieces = answers.feed(b"HTTP/1.1 200 OK\r\n\r\nhel") + answers.feed(b"lo")
    assert not answers.is_whole
    answers.end()

    assert b"".join(pieces) == b"hello"
    assert answers.is_whole
    assert not answers.head.keeps_alive


@pytest.mark.parametrize(
    "data, text",
    [
        (b"\x00\x00\x12\x04\x00", "expected an HTTP answer"),
        (b"SSH-2.0-x\r\n\r\n", "expected an HTTP answer"),
        (COUNTED + b"more", "4 more"),
        (COUNTED.replace(b"5", b"x5"), "expected a number"),
        (CHUNKED.replace(b"2\r\nhe", b"q\r\nhe"), "size of a chunk"),
        (CHUNKED + b"x", "no data after an answer"),
        (b"HTTP/1.1 200" + b"x" * 70_000, "end of an HTTP head"),
    ],
)
def test_what_is_no_answer_is_refused(data, text):
    with pytest.raises(HttpAnswerError, match=text):
        HttpAnswers({}).feed(data)


@pytest.mark.parametrize("cut", [0, 10, len(COUNTED) - 1])
def test_connection_that_closes_early_is_an_error(cut):
    answers = HttpAnswers({})
    if cut:
        answers.feed(COUNTED[:cut])

    with pytest.raises(HttpAnswerError, match="before its answer was complete"):
        answers.end()


@pytest.mark.parametrize(
    "head, keeps_alive",
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: Close\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: Keep-Alive\r\n\r\n", True),
    ],
)
def test_head_says_whether_the_connection_stays(head, keeps_alive):
    assert parse_head(head).keeps_alive is keeps_alive


@pytest.mark.parametrize(
    "body, text",
    [
        (b'{"error":"it is broken"}', "HTTP 500: it is broken"),
        (b"broken", "HTTP 500: broken"),
        (b"", "HTTP 500"),
        (b"{}", "HTTP 500: {}"),
    ],
)
def test_error_answer_has_the_servers_text(body, text):
    assert error_text(500, body) == text


def test_event_with_an_error_is_told_from_an_output_of_that_name():
    assert event_error(b'data: {"error":"no"}') == "no"
    assert event_error(b'data: {"model_name":"m","error":"an output"}') == ""
    assert event_error(b'data: {"x":1}') == ""
