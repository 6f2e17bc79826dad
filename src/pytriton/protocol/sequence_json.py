# SPDX-License-Identifier: Apache-2.0
"""The sequence extension in JSON: the members of infer and of generate requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytriton.protocol.json_members import boolean_member, text_member
from pytriton.protocol.sequence import SEQUENCE_FLAGS, check_sequence_id

if TYPE_CHECKING:
    from pytriton.base.messages import InferRequest

_MAX_SEQUENCE_ID = 2**64 - 1
SEQUENCE_MEMBERS = frozenset({"sequence_id", *SEQUENCE_FLAGS})


def read_sequence_member(container: dict[str, Any], key: str, request: InferRequest) -> None:
    """Read the one of SEQUENCE_MEMBERS that `key` names.

    Raises:
        ServerError: It has another type, or the id is too long.
    """
    if key in SEQUENCE_FLAGS:
        request.flags |= SEQUENCE_FLAGS[key] * boolean_member(container, key)
        return
    value = container[key]
    if type(value) is int and 0 <= value <= _MAX_SEQUENCE_ID:
        request.correlation_id = value
    else:
        request.correlation_id = check_sequence_id(text_member(container, key))
