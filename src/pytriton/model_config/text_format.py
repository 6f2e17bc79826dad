# SPDX-License-Identifier: Apache-2.0
"""Writes and reads ModelConfig as protobuf text, without protobuf.

The text does not show whether a field is repeated, a map or an enum; three tables contain this for
the fields that a bound model uses. Servers read any config.pbtxt with protobuf itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_ENUMS = {"data_type", "kind", "timeout_action"}
_MAPS: dict[str, type] = {"parameters": str, "inputs": str, "priority_queue_policy": int}
_REPEATED = {
    "input", "output", "dims", "instance_group", "preferred_batch_size", "model_warmup",
    "control_input", "control", "int32_false_true", "fp32_false_true", "bool_false_true",
    "state", "initial_state", "resources",
}  # fmt: skip

_TOKEN = re.compile(
    r"""\s+ | \#[^\n]*
    | (?P<string>"(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*')
    | (?P<word>[A-Za-z0-9_.+-]+)
    | (?P<mark>[{}\[\]<>:,;])""",
    re.VERBOSE,
)
_CLOSING = {"{": "}", "<": ">"}
_NUMBER = re.compile(r"[+-]?\d+")
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|x[0-9A-Fa-f]{1,2}|.)", re.DOTALL)
_NAMED_ESCAPES = dict(zip(b"abfnrtv", b"\a\b\f\n\r\t\v", strict=True))
_ESCAPES = {code: f"\\{code:03o}" for code in (*range(32), 127)} | {
    ord(character): f"\\{name}" for character, name in zip('"\\\n', '"\\n', strict=True)
}


def dumps(message: dict[str, Any]) -> str:
    """Write a message.

    Args:
        message: values by field, as returned by `ModelConfigGenerator.get_config`.

    Returns:
        The message as protobuf text.
    """
    return "".join(f"{line}\n" for line in _message_lines(message))


def _message_lines(message: dict[str, Any]) -> Iterator[str]:
    for name, value in message.items():
        if name in _MAPS:
            for key, item in value.items():
                yield from _field_lines(name, {"key": _MAPS[name](key), "value": item})
        elif isinstance(value, list):
            for item in value:
                yield from _field_lines(name, item)
        else:
            yield from _field_lines(name, value)


def _field_lines(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield f"{name} {{"
        for line in _message_lines(value):
            yield f"  {line}"
        yield "}"
    elif isinstance(value, bool):
        yield f"{name}: {str(value).lower()}"
    elif isinstance(value, int | float) or name in _ENUMS:
        yield f"{name}: {value}"
    else:
        yield f'{name}: "{value.translate(_ESCAPES)}"'


def loads(text: str) -> dict[str, Any]:
    """Read a message.

    Args:
        text: a message as protobuf text.

    Returns:
        Values by field, in the form that `dumps` takes; enum values are their names.

    Raises:
        ValueError: if the text is not well formed.
    """
    return _read_message(_tokens(text), "")


def _tokens(text: str) -> Iterator[str]:
    """Yields the words, strings and punctuation of a text, then an empty token for its end."""
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            line = text.count("\n", 0, at) + 1
            raise ValueError(f"Expected protobuf text, got {text[at]!r} in line {line}")
        if token.lastgroup:
            yield token[0]
        at = token.end()
    yield ""


def _read_message(tokens: Iterator[str], end: str) -> dict[str, Any]:
    message: dict[str, Any] = {}
    while (name := next(tokens)) != end:
        if name in {",", ";"}:
            continue
        if not (name[:1].isalpha() or name[:1] == "_"):
            raise ValueError(f"Expected a field or {end!r}, got {name!r}")
        first = next(tokens)
        if first == ":":
            first = next(tokens)
        for value in _read_values(tokens, first):
            _store(message, name, value)
    return message


def _read_values(tokens: Iterator[str], first: str) -> list[Any]:
    if first != "[":
        return [_read_value(tokens, first)]
    values: list[Any] = []
    while (item := next(tokens)) != "]":
        if item != ",":
            values.append(_read_value(tokens, item))
    return values


def _read_value(tokens: Iterator[str], first: str) -> Any:
    if first in _CLOSING:
        return _read_message(tokens, _CLOSING[first])
    if first.startswith(('"', "'")):
        # An escape is one byte, and a character may have several bytes.
        return _ESCAPE.sub(_unescaped, first[1:-1].encode()).decode()
    if _NUMBER.fullmatch(first):
        return int(first)
    if first in {"", "}", ">", ":", ",", ";", "]"}:
        raise ValueError(f"Expected a value, got {first!r}")
    return {"true": True, "false": False}.get(first, first)


def _unescaped(found: re.Match[bytes]) -> bytes:
    escape = found[1]
    if escape[0] in b"01234567":
        return bytes([int(escape, 8) & 0xFF])
    if escape[:1] == b"x" and len(escape) > 1:
        return bytes([int(escape[1:], 16)])
    return bytes([_NAMED_ESCAPES.get(escape[0], escape[0])])


def _store(message: dict[str, Any], name: str, value: Any) -> None:
    if name in _MAPS:
        if not isinstance(value, dict):
            raise ValueError(f"Expected an entry of {name} with a key and a value, got {value!r}")
        message.setdefault(name, {})[str(value.get("key", ""))] = value.get("value", {})
    elif name in _REPEATED:
        message.setdefault(name, []).append(value)
    else:
        message[name] = value
