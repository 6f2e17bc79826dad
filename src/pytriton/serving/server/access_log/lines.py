# SPDX-License-Identifier: Apache-2.0
"""The lines of the access log: pure functions of what is known about a request.

What clients send is escaped, so that it cannot fake lines or fields. A line has no query, no header
but the name of the client's program, and no body: these may contain secrets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timezone
from typing import NamedTuple

from pytriton.base.request_ids import visible
from pytriton.protocol.grpc import Status

HTTP, GRPC = "HTTP", "gRPC"
# What a client closed before its answer: nginx's number, as HTTP has none.
CLIENT_CLOSED = 499
MAX_CHARACTERS = 1024  # of a text that a client chose

_GRPC_NAMES = {int(status): status.name for status in Status}
_PLAIN = re.compile(r"[!#-\[\]-~]+")  # visible, and neither a quote nor a backslash


class AccessEntry(NamedTuple):
    """A request that has ended."""

    ended_s: float  # since the epoch
    client: str  # its address and port
    protocol: str
    method: bytes  # of HTTP; empty for gRPC
    target: bytes
    status: int  # of HTTP, or of gRPC
    bytes_in: int  # of the body, or of the messages with their prefixes
    bytes_out: int
    duration_ns: int
    model: str = ""
    version: str = ""
    request_id: str = ""
    user_agent: bytes = b""


Format = Callable[[AccessEntry], str]


def plain_line(entry: AccessEntry) -> str:
    """Returns the fields in a fixed order, separated by spaces; a dash is an empty one."""
    path = _path(entry)
    request = f"{entry.method.decode('latin-1')} {path}" if entry.method else path
    status = str(entry.status) if entry.protocol == HTTP else _grpc_name(entry.status)
    fields = (
        _time(entry.ended_s),
        entry.client or "-",
        entry.protocol,
        _quoted(request),
        status,
        str(entry.bytes_in),
        str(entry.bytes_out),
        f"{entry.duration_ns / 1e9:.6f}",
        _field(entry.model),
        _field(entry.version),
        _field(entry.request_id),
        _quoted(_text(entry.user_agent)),
    )
    return " ".join(fields)


def json_line(entry: AccessEntry) -> str:
    """Returns a JSON object; members without a value are left out."""
    members = {
        "time": _time(entry.ended_s),
        "client": entry.client,
        "protocol": entry.protocol,
        "method": entry.method.decode("latin-1"),
        "path": _path(entry),
        "status": entry.status,
        "grpc_status": _grpc_name(entry.status) if entry.protocol == GRPC else "",
        "bytes_in": entry.bytes_in,
        "bytes_out": entry.bytes_out,
        "duration_s": entry.duration_ns / 1e9,
        "model": _shortened(entry.model),
        "version": _shortened(entry.version),
        "request_id": _shortened(entry.request_id),
        "user_agent": _text(entry.user_agent),
    }
    return json.dumps({name: value for name, value in members.items() if value != ""})


def _time(moment_s: float) -> str:
    moment = datetime.fromtimestamp(moment_s, timezone.utc)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _path(entry: AccessEntry) -> str:
    """Returns the target without its query, which may contain a token."""
    return _text(entry.target.partition(b"?")[0])


def _grpc_name(status: int) -> str:
    return _GRPC_NAMES.get(status, str(status))


def _text(value: bytes) -> str:
    return _shortened(value.decode("latin-1"))


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."


def _field(text: str) -> str:
    if not text:
        return "-"
    text = _shortened(text)
    return text if _PLAIN.fullmatch(text) and text != "-" else _quoted(text)


def _quoted(text: str) -> str:
    if not text:
        return "-"
    escaped = text.replace("\\", r"\\").replace('"', r"\"")
    return f'"{visible(escaped)}"'
