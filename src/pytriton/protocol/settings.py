# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the settings of Triton's logging and trace extensions, as JSON and as protobuf.

Readers return the changes by name. Nothing is changed if one of them is wrong; Triton keeps those
before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from pytriton.base.errors import (
    InternalError,
    InvalidArgumentError,
    ServerError,
    UnavailableError,
    UnsupportedError,
)
from pytriton.base.log_switches import LOG_FORMATS, MAX_VERBOSE
from pytriton.protocol.json_text import access_error, load_members, utf8

if TYPE_CHECKING:
    from pytriton.base.dtypes import Buffer

LogSetting = bool | int | str

FILE, VERBOSE, FORMAT = "log_file", "log_verbose_level", "log_format"
_SWITCHES = ("log_info", "log_warning", "log_error")
_MAX_UNSIGNED = 2**64 - 1
_INVALID = "invalid argument for"
_FILE_IS_FIXED = "log file location can not be updated through network protocol"


def read_log_settings(body: Buffer) -> dict[str, LogSetting]:
    """Read the changes in the body of an HTTP request.

    Members that are null or unknown are ignored, and so is a document that is no object. The first
    of repeated members counts.

    Raises:
        ServerError: The body is malformed, a value has the wrong type or is unknown.
    """
    document = load_members(body)
    if not isinstance(document, dict):
        return {}
    given = {name: value for name, value in document.items() if value is not None}
    return _checked(given, _json_value, lambda text: UnavailableError(f"{_INVALID} --{text}"))


def _json_value(name: str, value: Any) -> LogSetting:
    if name == VERBOSE:
        if type(value) is not int or not 0 <= value <= _MAX_UNSIGNED:
            raise InternalError(access_error("unsigned-integer"))
        return value
    kind = str if name == FORMAT else bool
    if type(value) is not kind:
        raise InternalError(access_error("string" if name == FORMAT else "boolean"))
    return utf8(value, name) if isinstance(value, str) else kind(value)


def read_log_settings_pb(request: Any) -> dict[str, LogSetting]:
    """Read the changes in a `LogSettingsRequest`.

    Raises:
        ServerError: A value has the wrong type or is unknown.
    """
    return _checked(dict(request.settings.items()), _pb_value, _invalid_format)


def _invalid_format(text: str) -> ServerError:
    return InvalidArgumentError(f"{_INVALID} {text}")


def _pb_value(name: str, value: Any) -> LogSetting:
    field, kind = "bool_param", "boolean"
    if name == VERBOSE:
        field, kind = "uint32_param", "int32"
    elif name == FORMAT:
        field, kind = "string_param", "string"
    if value.WhichOneof("parameter_choice") != field:
        raise InvalidArgumentError(f"expect {kind} for '{name}'")
    read: LogSetting = getattr(value, field)
    return read


def _checked(
    given: Mapping[str, Any],
    read: Callable[[str, Any], LogSetting],
    format_error: Callable[[str], ServerError],
) -> dict[str, LogSetting]:
    """Read the known settings in Triton's order, so that the first error is the same."""
    if FILE in given:
        raise UnsupportedError(_FILE_IS_FIXED)
    changes = {
        name: read(name, given[name]) for name in (*_SWITCHES, VERBOSE, FORMAT) if name in given
    }
    if VERBOSE in changes:
        changes[VERBOSE] = min(int(changes[VERBOSE]), MAX_VERBOSE)
    if FORMAT in changes and changes[FORMAT] not in LOG_FORMATS:
        raise format_error(f"log_format, got: {changes[FORMAT]}")
    return changes


def log_settings_fields(settings: Mapping[str, LogSetting]) -> dict[str, Any]:
    """Returns the fields of a `LogSettingsResponse` with all settings."""
    kinds = {bool: "bool_param", int: "uint32_param", str: "string_param"}
    return {"settings": {name: {kinds[type(value)]: value} for name, value in settings.items()}}


_LIST = "trace_level"  # the only setting that is an array
_FILE = "trace_file"  # is refused, whatever its value is


def read_trace_settings(body: Buffer) -> dict[str, list[str]]:
    """Read the changes in the body of a request as lists of strings; null is an empty list.

    Raises:
        ServerError: The body is malformed.
    """
    document = load_members(body)
    if not isinstance(document, dict):
        raise InternalError("attempt to get members for non-object")
    return {utf8(name, "settings"): _texts(name, value) for name, value in document.items()}


def _texts(name: str, value: Any) -> list[str]:
    if value is None or name == _FILE:
        return []
    if name == _LIST and type(value) is not list:
        raise InternalError(access_error("array"))
    texts = value if name == _LIST else [value]
    for text in texts:
        if type(text) is not str:
            raise InternalError(access_error("string"))
    return [utf8(text, name) for text in texts]


def encode_trace_settings(settings: Mapping[str, list[str]]) -> bytes:
    return orjson.dumps(
        {name: texts if name == _LIST else texts[0] for name, texts in settings.items()}
    )
