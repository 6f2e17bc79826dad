# SPDX-License-Identifier: Apache-2.0
"""The constant parts of HTTP answers."""

from __future__ import annotations

import http

from pytriton.wire.json_text import dump_json

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

STATUS_LINES: dict[int, bytes] = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
    for status in http.HTTPStatus
}


def error_body(message: str) -> bytes:
    """Triton's error object."""
    return b'{"error":%b}' % dump_json(message)
