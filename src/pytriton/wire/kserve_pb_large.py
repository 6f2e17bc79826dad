# SPDX-License-Identifier: Apache-2.0
"""Large ModelInferRequest messages that are not laid out as all writers do, or hold typed tensors.

Nothing here costs more than a few milliseconds, whatever a message holds: fields are counted before
anything is made of them, and typed tensors are only found. Reading them is for a thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytriton.errors import InvalidArgumentError
from pytriton.protos import service_pb2
from pytriton.wire.kserve_pb_form import MAX_FIELDS, InferForm, Input, read_input, read_output
from pytriton.wire.large_contents import LargeContents
from pytriton.wire.protobuf_fields import LENGTH, cut_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.dtypes import Buffer

_Request = service_pb2.ModelInferRequest
_NAMES = {
    descriptor.number: descriptor.name for descriptor in _Request.DESCRIPTOR.fields
}  # of the message's fields
_MODEL_NAME, _MODEL_VERSION, _ID, _PARAMETERS, _INPUTS, _OUTPUTS, _RAW = range(1, 8)
_CONTENTS = 5  # of an input
# Names, shapes and parameters of a request, all together.
MAX_HEAD_BYTES = 4 << 20


def read_large(message: memoryview) -> tuple[InferForm, Sequence[Buffer]]:
    """Cut a message into its parts and its raw tensors.

    Raises:
        InvalidArgumentError: It has too many parts, or they are too large.
        FieldError: It is no message.
    """
    parts: dict[int, list[memoryview]] = {number: [] for number in _NAMES}
    parameters: list[memoryview] = []
    others = 0
    for number, wire_type, begin, start, stop in cut_fields(message):
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
    form = InferForm(
        head.text(parts[_MODEL_NAME]), head.text(parts[_MODEL_VERSION]), head.text(parts[_ID])
    )
    form.inputs = [_read_input(part, head) for part in parts[_INPUTS]]
    form.outputs = [read_output(head.take(part)) for part in parts[_OUTPUTS]]
    if parameters:
        content = b"".join(head.take(part) for part in parameters)
        form.parameters = _Request.FromString(content).parameters
    return form, parts[_RAW]


def check_counts(message: Any) -> None:
    """Refuse a message that was parsed as a whole and has too many parts.

    Raises:
        InvalidArgumentError: It has.
    """
    for field in ("inputs", "outputs", "parameters", "raw_input_contents"):
        _check_count(field, len(getattr(message, field)))


def _check_count(what: str, count: int) -> None:
    if count > MAX_FIELDS:
        raise InvalidArgumentError(
            f"expected at most {MAX_FIELDS} {what} in a request, got at least {count}"
        )


class _HeadBudget:
    """How much of a request, tensors not counted, may still be read."""

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
        """The last of the values of a field."""
        texts = [self.take(part) for part in parts]
        for text in texts:
            text.decode()  # even one that is replaced has to be valid
        return texts[-1].decode() if texts else ""


def _read_input(part: memoryview, head: _HeadBudget) -> Input:
    """An input whose typed tensor, if it has one, is left as it is."""
    contents: list[memoryview] = []
    others: list[memoryview] = []
    for count, (number, wire_type, begin, start, stop) in enumerate(cut_fields(part), 1):
        _check_count("fields of an input", count)
        if number == _CONTENTS and wire_type == LENGTH:
            contents.append(part[start:stop])
        else:
            others.append(part[begin:stop])
    item = read_input(b"".join(head.take(other) for other in others))
    return item._replace(contents=LargeContents(contents)) if contents else item
