# SPDX-License-Identifier: Apache-2.0
"""What a client may send, but no server may answer as if it made sense.

Each is complete: the server needs no further byte to see what is wrong, so nobody waits.
"""

from __future__ import annotations

from tests.workload.calls import compress
from tests.workload.grpc_client import SERVICE
from tests.workload.http2_connection import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)


def _post(path: bytes, body: bytes, *fields: bytes) -> bytes:
    length = b"Content-Length: %d" % len(body)
    head = (b"POST %b HTTP/1.1" % path, b"Host: localhost", length, *fields, b"", b"")
    return b"\r\n".join(head) + body


def _get(*fields: bytes, line: bytes = b"GET /v2/health/live HTTP/1.1") -> bytes:
    return b"\r\n".join((line, *fields, b"", b""))


_INFER = b"/v2/models/double/infer"
_TENSOR = b'{"inputs":[{"name":"%b","shape":%b,"datatype":"%b","data":%b}]}'

HTTP_REQUESTS = (
    b"\x00\x01\x02\x03\r\n\r\n",
    b"no request at all\r\n\r\n",
    _get(b"Host: localhost", line=b"GET /v2/health/live HTTP/9.9"),
    _get(b"Host: localhost", b"no colon in this line"),
    _get(b"Host: localhost", b"na me: value"),
    _get(b"Host: localhost", b"Name: val\x00ue"),
    _post(_INFER, b"{}", b"Transfer-Encoding: chunked"),
    _post(_INFER, b"{}", b"Content-Length: 7"),
    b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n" % _INFER,
    b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: ten\r\n\r\n" % _INFER,
    b"POST %b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n" % _INFER,
    _get(b"Host: localhost", b"Filler: " + b"x" * 70_000),
    _post(_INFER, b'{"inputs":'),
    _post(_INFER, b'{"inputs":[]}'),
    _post(_INFER, b"[" * 200),
    _post(_INFER, _TENSOR % (b"IN", b"[1,4]", b"INT32", b"[1,2,3]")),
    _post(_INFER, _TENSOR % (b"IN", b"[1,4]", b"FP32", b"[1,2,3,4]")),
    _post(_INFER, _TENSOR % (b"IN", b"[1,-4]", b"INT32", b"[1,2,3,4]")),
    _post(_INFER, _TENSOR % (b"IN", b"[9,4]", b"INT32", b"[%b0]" % (b"0," * 35))),
    _post(_INFER, _TENSOR % (b"OTHER", b"[1,4]", b"INT32", b"[1,2,3,4]")),
    _post(_INFER, b"{}", b"Inference-Header-Content-Length: 99"),
    _post(b"/v2/models/nobody/infer", _TENSOR % (b"IN", b"[1]", b"INT32", b"[1]")),
    _post(b"/v2/nothing", b"{}"),
    _post(b"/v2/models/stream/infer", _TENSOR % (b"COUNT", b"[1]", b"INT32", b"[1]")),
)

# Those that make no more sense over HTTP/2: their lines become fields, and the version is gone.
HTTP2_REQUESTS = HTTP_REQUESTS[3:]

# Calls with a method and a message, which have to fail by their status.
GRPC_CALLS = (
    (f"{SERVICE}ModelInfer", b"\xff\xff\xff\xff"),
    (f"{SERVICE}ModelInfer", b""),
    (f"{SERVICE}ModelInfer", b"\x0a\x06nobody"),
    (f"{SERVICE}ModelInfer", b"\x0a\x06double"),
    (f"{SERVICE}Nothing", b""),
    ("/nothing", b""),
    (f"{SERVICE}ModelReady", b"\x0a"),
)

# Frames after which the server has to end the connection (RFC 9113).
GRPC_FRAMES = (
    frame(DATA, 0, 0, b"on the connection"),
    frame(DATA, 0, 99_999, b"on a stream that nobody opened"),
    frame(HEADERS, END_HEADERS, 2, b"\x82"),
    frame(HEADERS, END_HEADERS, 0, b"\x82"),
    frame(HEADERS, END_HEADERS, 99_999, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
    frame(CONTINUATION, END_HEADERS, 1, b""),
    frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\0"),
    frame(WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff") * 2,
    frame(SETTINGS, 0, 0, b"odd"),
    frame(SETTINGS, 0, 1, b""),
    frame(SETTINGS, 0, 0, b"\0\x04\xff\xff\xff\xff"),
    frame(PING, 0, 0, b"short"),
    frame(RST_STREAM, 0, 0, b"\0\0\0\x08"),
    b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
)

_BODY = _TENSOR % (b"IN", b"[1,4]", b"INT32", b"[1,2,3,4]")
_ZIPPED = compress(_BODY, "gzip")

# Compressed bodies that cannot be read, and codings that nobody knows.
WRONG_CODINGS = (
    _post(_INFER, _BODY, b"Content-Encoding: gzip"),
    _post(_INFER, _ZIPPED[:-9], b"Content-Encoding: gzip"),
    _post(_INFER, _ZIPPED[:12] + b"\xff" * 20, b"Content-Encoding: gzip"),
    _post(_INFER, b"", b"Content-Encoding: deflate"),
    _post(_INFER, _BODY, b"Content-Encoding: br"),
    _post(_INFER, _ZIPPED, b"Content-Encoding: gzip, gzip"),
    _post(_INFER, compress(b"{}", "deflate"), b"Content-Encoding: deflate"),
)
