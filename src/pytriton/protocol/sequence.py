# SPDX-License-Identifier: Apache-2.0
"""The sequence extension: the parameters of requests, as JSON and as gRPC has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytriton.base.errors import UnsupportedError
from pytriton.base.messages import RequestFields
from pytriton.protocol.json_text import boolean_member, text_member

if TYPE_CHECKING:
    pass

MAX_TEXT_LENGTH = 128
# The parameters that mark a sequence's first and last request, as bits of `InferRequest.flags`.
SEQUENCE_FLAGS = {"sequence_start": 1, "sequence_end": 2}


def check_sequence_id(text: str) -> str:
    """Check the text of a correlation id, and return it.

    Raises:
        UnsupportedError: The text is too long.
    """
    if len(text) > MAX_TEXT_LENGTH:
        raise UnsupportedError(
            f"string correlation ID cannot be longer than {MAX_TEXT_LENGTH} characters"
        )
    return text


_MAX_SEQUENCE_ID = 2**64 - 1
SEQUENCE_MEMBERS = frozenset({"sequence_id", *SEQUENCE_FLAGS})


def read_sequence_member(container: dict[str, Any], key: str, fields: RequestFields) -> None:
    """Read the one of SEQUENCE_MEMBERS that `key` names.

    Raises:
        ServerError: It has another type, or the id is too long.
    """
    if key in SEQUENCE_FLAGS:
        fields.flags |= SEQUENCE_FLAGS[key] * boolean_member(container, key)
        return
    value = container[key]
    if type(value) is int and 0 <= value <= _MAX_SEQUENCE_ID:
        fields.correlation_id = value
    else:
        fields.correlation_id = check_sequence_id(text_member(container, key))
