# SPDX-License-Identifier: Apache-2.0
"""Parses large ModelInferRequest messages that have an unusual layout or typed tensors.

This takes a few milliseconds at most, whatever a message contains: fields are counted before they
are parsed, and typed tensors are only located. They are parsed later, in a thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytriton.base.errors import InvalidArgumentError
from pytriton.base.protos import service_pb2
from pytriton.protocol.kserve_pb_parsed import (
    MAX_FIELDS,
    ParsedMessage,
    PbInput,
    make_parameters,
    read_input,
    read_output,
)
from pytriton.protocol.large_contents import LargeContents
from pytriton.protocol.protobuf_fields import LENGTH, split_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.base.dtypes import Buffer

_Request = service_pb2.ModelInferRequest
_NAMES = {
    descriptor.number: descriptor.name for descriptor in _Request.DESCRIPTOR.fields
}  # the names of the message's fields
_MODEL_NAME, _MODEL_VERSION, _ID, _PARAMETERS, _INPUTS, _OUTPUTS, _RAW = range(1, 8)
_CONTENTS = 5  # a field of an input
# The limit for all names, shapes and parameters of a request together.
MAX_HEAD_BYTES = 4 << 20


def read_large(message: memoryview) -> tuple[ParsedMessage, Sequence[Buffer]]:
    """Parse a message; returns its parts and its raw tensors.

    Raises:
        InvalidArgumentError: The message has too many parts, or too large ones.
        FieldError: It is not a valid message.
    """
    parts: dict[int, list[memoryview]] = {number: [] for number in _NAMES}
    parameters: list[memoryview] = []
    others = 0
    for number, wire_type, begin, start, stop in split_fields(message):
        found = parts.get(number)
        if found is None or wire_type != LENGTH:
            others += 1
            _check_count("unknown fields", others)
            continue
        found.append(message[start:stop])
        _check_count(_NAMES[number], len(found))
        if number == _PARAMETERS:
            parameters.append(message[begin:stop])
    head = _HeadBudget()
    parsed = ParsedMessage(
        head.text(parts[_MODEL_NAME]), head.text(parts[_MODEL_VERSION]), head.text(parts[_ID])
    )
    parsed.inputs = [_read_input(part, head) for part in parts[_INPUTS]]
    parsed.outputs = [read_output(head.take(part)) for part in parts[_OUTPUTS]]
    if parameters:
        content = b"".join(head.take(part) for part in parameters)
        parsed.parameters = make_parameters(_Request.FromString(content).parameters)
    return parsed, parts[_RAW]


def check_counts(message: Any) -> None:
    """Check the number of parts of a message that was parsed as a whole.

    Raises:
        InvalidArgumentError: It has too many parts.
    """
    for field in ("inputs", "outputs", "parameters", "raw_input_contents"):
        _check_count(field, len(getattr(message, field)))


def _check_count(what: str, count: int) -> None:
    if count > MAX_FIELDS:
        raise InvalidArgumentError(
            f"expected at most {MAX_FIELDS} {what} in a request, got at least {count}"
        )


class _HeadBudget:
    """Limits how many bytes of a request other than its tensors are parsed."""

    def __init__(self) -> None:
        self._used = 0

    def take(self, part: memoryview) -> bytes:
        self._used += len(part)
        if self._used > MAX_HEAD_BYTES:
            raise InvalidArgumentError(
                f"expected at most {MAX_HEAD_BYTES} bytes of names, shapes and parameters in a "
                f"request, got at least {self._used}"
            )
        return bytes(part)

    def text(self, parts: list[memoryview]) -> str:
        """Returns the last value of a text field."""
        texts = [self.take(part) for part in parts]
        for text in texts:
            text.decode()  # values that are overridden have to be valid, too
        return texts[-1].decode() if texts else ""


def _read_input(part: memoryview, head: _HeadBudget) -> PbInput:
    """Parse an input, but not its typed tensor."""
    contents: list[memoryview] = []
    others: list[memoryview] = []
    for count, (number, wire_type, begin, start, stop) in enumerate(split_fields(part), 1):
        _check_count("fields of an input", count)
        if number == _CONTENTS and wire_type == LENGTH:
            contents.append(part[start:stop])
        else:
            others.append(part[begin:stop])
    item = read_input(b"".join(head.take(other) for other in others))
    return item._replace(contents=LargeContents(contents)) if contents else item
