# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 error codes (RFC 9113, section 7), and exceptions for violations by the peer or by us."""

from __future__ import annotations

import enum


class Http2ErrorCode(enum.IntEnum):
    """The reason in a RST_STREAM or GOAWAY frame."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class ConnectionViolation(Exception):  # noqa: N818  named after what the peer did
    """A violation by the peer that ends the connection with GOAWAY."""

    def __init__(self, code: Http2ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class StreamViolation(Exception):  # noqa: N818  named after what the peer did
    """A violation by the peer that ends one stream with RST_STREAM; the connection stays open."""

    def __init__(self, stream_id: int, code: Http2ErrorCode, message: str) -> None:
        super().__init__(message)
        self.stream_id = stream_id
        self.code = code
        self.message = message


class LocalProtocolError(Exception):
    """Our own code tried to send what HTTP/2 does not allow."""
