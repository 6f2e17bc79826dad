# SPDX-License-Identifier: Apache-2.0
"""Converts settings of the trace extension between JSON and lists of strings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from pytriton.base.errors import InternalError
from pytriton.protocol.json_text import access_error, load_members, utf8

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytriton.base.dtypes import Buffer

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
