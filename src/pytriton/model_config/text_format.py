# SPDX-License-Identifier: Apache-2.0
"""ModelConfig as protobuf text, the format of `config.pbtxt`.

Only this module of the package imports protobuf, and only programs that read or write such files
import this module: protobuf takes 10 MiB, which a process that binds models does not need.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format, text_format

from pytriton.base.protos import model_config_pb2


def dumps(message: dict[str, Any]) -> str:
    """Write a message.

    Args:
        message: values by field, as returned by `ModelConfigGenerator.get_config`.

    Returns:
        The message as protobuf text. As in all messages, fields with their default are left out.

    Raises:
        ValueError: if a value does not fit its field.
    """
    try:
        parsed = json_format.ParseDict(message, model_config_pb2.ModelConfig())
    except json_format.ParseError as error:
        raise ValueError(str(error)) from error
    text: str = text_format.MessageToString(parsed, as_utf8=True)
    return text


def loads(text: str) -> dict[str, Any]:
    """Read a message; fields that it does not have are ignored, as newer servers may have more.

    Args:
        text: a message as protobuf text.

    Returns:
        Values by field, in the form of JSON: names of enum values, and 64-bit numbers as text.

    Raises:
        ValueError: if the text is not well formed; it begins with the line and the column.
    """
    parsed = model_config_pb2.ModelConfig()
    try:
        text_format.Parse(text, parsed, allow_unknown_field=True)
    except (text_format.ParseError, RecursionError) as error:
        raise ValueError(str(error)) from error
    message: dict[str, Any] = json_format.MessageToDict(parsed, preserving_proto_field_name=True)
    return message
