# SPDX-License-Identifier: Apache-2.0
"""Status lines, heads and error bodies of HTTP responses."""

from __future__ import annotations

import http

from pytriton.protocol.json_text import dump_json

JSON_TYPE = b"application/json"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

STATUS_LINES: dict[int, bytes] = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
    for status in http.HTTPStatus
} | {499: b"HTTP/1.1 499 Client Closed Request\r\n"}
# A response with JSON, without its length and its body, after which the connection is kept.
JSON_RESPONSE = b"%bContent-Type: %b\r\nContent-Length: %%d\r\n\r\n%%b" % (
    STATUS_LINES[200],
    JSON_TYPE,
)


def error_body(message: str) -> bytes:
    """Returns Triton's error object."""
    return b'{"error":%b}' % dump_json(message)


def refusal(status: int, message: str) -> bytes:
    """Returns the last response on a connection."""
    body = error_body(message)
    return b"%bContent-Type: %b\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (
        STATUS_LINES[status],
        JSON_TYPE,
        len(body),
        body,
    )


def response_head(
    status: int, content_type: bytes, headers: bytes, size: int, *, closes: bool, is_http_10: bool
) -> bytes:
    """Returns the head of a response with `size` bytes; `headers` are whole lines."""
    if closes:
        headers += b"Connection: close\r\n"
    elif is_http_10:
        headers += b"Connection: keep-alive\r\n"
    text = b"%bContent-Type: %b\r\n%bContent-Length: %d\r\n\r\n"
    return text % (STATUS_LINES[status], content_type, headers, size)


def stream_head(
    status: int, content_type: bytes, headers: bytes, *, closes: bool, is_chunked: bool
) -> bytes:
    """Returns the head of a response of unknown length; `headers` are whole lines.

    If it is not chunked, the end of the connection is the end of the response.
    """
    return b"%bContent-Type: %b\r\n%b%b%b\r\n" % (
        STATUS_LINES[status],
        content_type,
        headers,
        b"Transfer-Encoding: chunked\r\n" if is_chunked else b"",
        b"Connection: close\r\n" if closes else b"",
    )
