# SPDX-License-Identifier: Apache-2.0
"""Converts tensors in the typed fields of a message (`InferTensorContents`) to bytes.

Large ones are parsed in pieces: a protobuf parser would create an object for each element, and
block all other threads meanwhile.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pytriton.base import dtypes
from pytriton.base.dtypes import DataType
from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.protocol.protobuf_fields import (
    FIXED32,
    FIXED64,
    LENGTH,
    VARINT,
    FieldError,
    read_field,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from pytriton.base.dtypes import Buffer
    from pytriton.protocol.protobuf_fields import PbField

_PIECE_BYTES = 256 << 10
# Limits for elements that are separate fields: texts, and numbers of clients that do not pack them.
MAX_TEXTS = 1 << 24  # they take 12 s of one thread, which lets others in between
MAX_SINGLE_NUMBERS = 1_000_000
_TEXTS_PER_CHECK = 100_000  # texts that are read before their number is checked
_TEXTS = 8  # the number of the field with texts
_TEXT_TAG = _TEXTS << 3 | LENGTH
# The wire type of an element that is a separate field, by the number of the field.
_SINGLE = {**dict.fromkeys(range(1, 6), VARINT), 6: FIXED32, 7: FIXED64}
_MAX_VARINT_BYTES = 10
_pack_length = struct.Struct("<I").pack
_FIXED = {6: dtypes.FP32, 7: dtypes.FP64}  # fields whose elements have the bytes of a tensor


class _ContentsField(NamedTuple):
    """A field, its datatype (also in Triton's errors), and the datatypes of tensors in it."""

    number: int
    name: str
    dtype: DataType
    accepted: frozenset[DataType]


# A field has the widest of its datatypes; narrower integers keep their low bits. The order is that
# of Triton's checks, because it decides which error is reported.
_FIELDS = tuple(
    _ContentsField(number, name, carried[-1], frozenset(carried))
    for number, name, *carried in (
        (1, "bool_contents", dtypes.BOOL),
        (2, "int_contents", dtypes.INT8, dtypes.INT16, dtypes.INT32),
        (3, "int64_contents", dtypes.INT64),
        (4, "uint_contents", dtypes.UINT8, dtypes.UINT16, dtypes.UINT32),
        (5, "uint64_contents", dtypes.UINT64),
        (6, "fp32_contents", dtypes.FP32),
        (7, "fp64_contents", dtypes.FP64),
        (8, "bytes_contents", dtypes.BYTES),
    )
)


def tensor_from_contents(contents: Any, dtype: DataType, name: str, model_name: str) -> Buffer:
    """Returns the bytes of a tensor whose elements are in the field for its datatype.

    `contents` is an InferTensorContents message, or LargeContents.

    Raises:
        InvalidArgumentError: Another field has elements, or more than one has.
    """
    data: Buffer = b""
    large = contents.fields() if isinstance(contents, LargeContents) else None
    for field in _FIELDS:
        elements: Any = getattr(contents, field.name) if large is None else large.get(field.number)
        if not elements:
            continue
        place = (
            f"unexpected explicit tensor data for input tensor '{name}' for model '{model_name}'"
        )
        if data:
            raise InvalidArgumentError(f"{place}, binary data was already supplied.")
        if dtype not in field.accepted:
            raise InvalidArgumentError(
                f"{place} of type '{field.dtype.name}', expected datatype '{dtype.name}'"
            )
        if large is not None:
            data = read_elements(field.number, elements, field.dtype, dtype)
        elif dtype is dtypes.BYTES:
            data = dtypes.encode_bytes(elements)
        else:
            wide = np.fromiter(elements, field.dtype.numpy, len(elements))
            data = wide.astype(dtype.numpy).tobytes()
    return data


class LargeContents:
    """The unparsed parts of one `InferTensorContents` message."""

    __slots__ = ("_parts",)

    def __init__(self, parts: list[memoryview]) -> None:
        self._parts = parts

    def fields(self) -> dict[int, list[Buffer]]:
        """Returns the content of each field: texts in the format of a tensor, numbers unparsed.

        Raises:
            InternalError: The message is invalid.
            InvalidArgumentError: It has too many elements that are separate fields.
        """
        found: dict[int, list[Buffer]] = {}
        texts = bytearray()
        numbers = text_count = 0
        try:
            for part in self._parts:
                at = 0
                while at < len(part):
                    if part[at] == _TEXT_TAG:
                        at, count = _append_texts(part, at, texts)
                        text_count += count
                        _check_count(text_count, MAX_TEXTS, "texts")
                        continue
                    field = read_field(part, at)
                    _add(found, field, part[field.start : field.stop])
                    at = field.stop
                    numbers += 1
                    _check_count(numbers, MAX_SINGLE_NUMBERS, "numbers that are not packed")
        except FieldError:
            raise InternalError("Unable to parse request") from None
        if texts:
            found[_TEXTS] = [texts]
        return found


def _check_count(count: int, most: int, what: str) -> None:
    if count > most:
        raise InvalidArgumentError(
            f"expected at most {most} {what} in the contents of an input, got more: send them in "
            "raw_input_contents"
        )


def _append_texts(part: memoryview, at: int, texts: bytearray) -> tuple[int, int]:
    """Append consecutive texts to a tensor; returns where they end, and their number."""
    end = len(part)
    count = 0
    while at < end and part[at] == _TEXT_TAG and count < _TEXTS_PER_CHECK:
        start = at + 2
        size = part[at + 1] if start <= end else 128
        if size > 127:
            field = read_field(part, at)
            start, size = field.start, field.stop - field.start
        at = start + size
        if at > end:
            raise FieldError(f"a text ends at {at} of {end} bytes")
        texts += _pack_length(size)
        texts += part[start:at]
        count += 1
    return at, count


def _add(found: dict[int, list[Buffer]], field: PbField, content: memoryview) -> None:
    """Add a field to others of the same number; a field with a wrong type is ignored."""
    number, wire_type = field.number, field.wire_type
    if wire_type == LENGTH and number in _SINGLE:
        if content:
            found.setdefault(number, []).append(content)
        return
    if wire_type != _SINGLE.get(number):
        return
    parts = found.setdefault(number, [])
    if not parts or not isinstance(parts[-1], bytearray):
        parts.append(bytearray())
    joined = parts[-1]
    assert isinstance(joined, bytearray)
    joined += content


def read_elements(number: int, parts: list[Buffer], wide: DataType, dtype: DataType) -> Buffer:
    """Returns the bytes of a tensor from the elements of a field, from `LargeContents.fields`.

    `wide` is the datatype of the field; that of the tensor may be narrower.

    Raises:
        InternalError: The content is not a valid packed field.
    """
    if number == _TEXTS or (number in _FIXED and len(parts) == 1):
        return parts[0]
    tensor = bytearray()
    if number in _FIXED:
        for part in parts:
            tensor += part
        return tensor
    for part in parts:
        for piece in _varint_pieces(part):
            numbers = _decode_varints(piece)
            if wide is dtypes.BOOL:
                tensor += (numbers != 0).tobytes()
            else:  # numbers that are too large keep their low bits
                tensor += numbers.astype(wide.numpy).astype(dtype.numpy).tobytes()
    return tensor


def _varint_pieces(part: Buffer) -> Iterator[NDArray[np.uint8]]:
    """Yields pieces of a packed field that contain whole numbers."""
    content = np.frombuffer(part, np.uint8)
    start = 0
    while start < len(content):
        stop = min(start + _PIECE_BYTES, len(content))
        ends = np.flatnonzero(content[max(start, stop - _MAX_VARINT_BYTES) : stop] < 128)
        if not len(ends):
            raise InternalError("Unable to parse request")
        stop = max(start, stop - _MAX_VARINT_BYTES) + int(ends[-1]) + 1
        yield content[start:stop]
        start = stop


def _decode_varints(piece: NDArray[np.uint8]) -> NDArray[np.uint64]:
    ends = np.flatnonzero(piece < 128)
    if len(ends) == len(piece):  # small numbers only
        return piece.astype(np.uint64)
    starts = np.concatenate(([0], ends[:-1] + 1))
    sizes = ends - starts + 1
    if sizes.max() > _MAX_VARINT_BYTES:
        raise InternalError("Unable to parse request")
    numbers = np.zeros(len(ends), np.uint64)
    for at in range(int(sizes.max())):
        longer = np.flatnonzero(sizes > at)
        bits = piece[starts[longer] + at].astype(np.uint64) & np.uint64(127)
        numbers[longer] |= bits << np.uint64(7 * at)
    return numbers
