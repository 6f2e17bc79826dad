# SPDX-License-Identifier: Apache-2.0
"""Checks that header lists are well formed (RFC 9113, section 8), and parses request heads."""

from __future__ import annotations

import re
from typing import Any

import msgspec

Field = tuple[bytes, bytes]

_is_name = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
_is_value = re.compile(rb"(?:[^\x00\r\n \t](?:[^\x00\r\n]*[^\x00\r\n \t])?)?").fullmatch
_is_content_length = re.compile(rb"[0-9]{1,19}").fullmatch

_BLANKS = b" \t"
_PSEUDO_NAMES = frozenset((b":method", b":scheme", b":path", b":authority"))
_CONNECTION_NAMES = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"),
)


class Http2RequestHead(msgspec.Struct, gc=False, eq=False):
    """The header section of a request; requests with equal header blocks may share an object."""

    method: str
    path: str
    fields: tuple[Field, ...]  # without pseudo-headers
    authority: str = ""
    content_length: int | None = None
    violation: str | None = None  # why the head is malformed
    memo: Any = None  # a cache for the layer above


def parse_request(fields: list[Field]) -> Http2RequestHead:
    """Returns the head of a request from its decoded fields; `violation` is set if malformed."""
    pseudo: dict[bytes, bytes] = {}
    regular: list[Field] = []
    violation = None
    for name, value in fields:
        if name[:1] == b":":
            violation = violation or _pseudo_violation(name, pseudo, is_late=bool(regular))
            pseudo[name] = value
            violation = violation or (None if _is_value(value) else _value_violation(name, value))
        else:
            # gRPC clients send values unchanged, and its specification lets servers strip them.
            value = value.strip(_BLANKS)  # noqa: PLW2901
            violation = violation or field_violation(name, value)
            regular.append((name, value))
    lengths = {value for name, value in regular if name == b"content-length"}
    violation = violation or _request_violation(pseudo) or _length_violation(lengths)
    return Http2RequestHead(
        method=pseudo.get(b":method", b"").decode("latin-1"),
        path=pseudo.get(b":path", b"").decode("latin-1"),
        fields=tuple(regular),
        authority=pseudo.get(b":authority", b"").decode("latin-1"),
        content_length=int(lengths.pop()) if lengths and violation is None else None,
        violation=violation,
    )


def trailers_violation(fields: list[Field]) -> str | None:
    """Returns why the trailers of a request are malformed; None if they are not."""
    for name, value in fields:
        violation = field_violation(name, value.strip(_BLANKS))
        if violation is not None:
            return violation
    return None


def field_violation(name: bytes, value: bytes) -> str | None:
    if not _is_name(name):
        return f"expected a field name in lower case, got {name!r}"
    if not _is_value(value):
        return _value_violation(name, value)
    if name in _CONNECTION_NAMES:
        return f"field {name.decode()} does not exist in HTTP/2"
    if name == b"te" and value.lower() != b"trailers":
        return f"expected field te to be 'trailers', got {value!r}"
    return None


def _value_violation(name: bytes, value: bytes) -> str:
    return f"field {name!r} has a value with forbidden characters: {value[:100]!r}"


def _pseudo_violation(name: bytes, seen: dict[bytes, bytes], *, is_late: bool) -> str | None:
    if name not in _PSEUDO_NAMES:
        return f"pseudo-header {name!r} does not exist in requests"
    if name in seen:
        return f"pseudo-header {name.decode()} came twice"
    if is_late:
        return f"pseudo-header {name.decode()} came after a regular field"
    return None


def _request_violation(pseudo: dict[bytes, bytes]) -> str | None:
    method = pseudo.get(b":method")
    if not method:
        return "expected pseudo-header :method, got none"
    if method == b"CONNECT":
        if b":scheme" in pseudo or b":path" in pseudo or not pseudo.get(b":authority"):
            return "expected CONNECT with :authority only"
        return None
    if not pseudo.get(b":scheme"):
        return "expected pseudo-header :scheme, got none"
    path = pseudo.get(b":path", b"")
    if not path.startswith(b"/") and not (path == b"*" and method == b"OPTIONS"):
        return f"expected pseudo-header :path to begin with '/', got {path[:100]!r}"
    return None


def _length_violation(lengths: set[bytes]) -> str | None:
    if len(lengths) > 1 or not all(_is_content_length(length) for length in lengths):
        return f"expected one content-length in digits, got {sorted(lengths)!r}"
    return None
