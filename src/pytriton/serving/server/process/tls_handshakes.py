# SPDX-License-Identifier: Apache-2.0
"""What clients send while a connection is encrypted: where records end, why handshakes fail."""

from __future__ import annotations

import ssl

_RECORD_HEAD_BYTES = 5

# What OpenSSL says of a client that sent a request without encrypting it, and what it is told.
PLAIN_REQUEST = "HTTP_REQUEST"
_PLAIN_TEXT = b'{"error":"this port is encrypted: use https instead of http"}'
PLAIN_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_PLAIN_TEXT), _PLAIN_TEXT)
)


# Why clients do not complete their handshakes: labels of a metric, so there are few of them.
HANDSHAKE_FAILURES = PROTOCOL, CERTIFICATE, TIMEOUT, OTHER = (
    "protocol",  # it speaks no TLS, or shares no version or cipher with the server
    "certificate",  # one side does not accept the certificate of the other, or misses one
    "timeout",
    "other",  # such as a client that leaves amid its handshake
)


def failure_reason(error: Exception) -> str:
    """Returns the reason of a handshake that OpenSSL has ended."""
    if not isinstance(error, ssl.SSLError):
        return OTHER
    # The names of alerts of clients have one of these in them, too (RFC 8446, 6.2).
    said = error.reason or ""
    is_about_certificate = "CERTIFICATE" in said or "UNKNOWN_CA" in said
    return CERTIFICATE if is_about_certificate else PROTOCOL


class TlsRecords:
    """Finds the ends of records in what a client sends (RFC 8446, 5.1)."""

    __slots__ = ("_head", "_left")

    def __init__(self) -> None:
        self._head = b""  # of a record of which no more has come
        self._left = 0  # missing bytes of a record

    @property
    def is_between(self) -> bool:
        """Whether the next byte begins a record."""
        return not (self._left or self._head)

    def cut(self, data: bytes | memoryview, at: int, most: int) -> tuple[int, int]:
        """Returns where so many records end in `data`, or its end; and how many end before."""
        end, count = len(data), 0
        while at < end and count < most:
            if self._left:
                step = min(self._left, end - at)
                self._left -= step
            else:
                step = min(_RECORD_HEAD_BYTES - len(self._head), end - at)
                self._head += bytes(data[at : at + step])
                if len(self._head) == _RECORD_HEAD_BYTES:
                    self._left = int.from_bytes(self._head[3:], "big")
                    self._head = b""
            at += step
            count += self.is_between
        return at, count
