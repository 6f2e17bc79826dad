# SPDX-License-Identifier: Apache-2.0
"""The table of tensor datatypes and the byte layout of BYTES tensors. No other module has them."""

from __future__ import annotations

import struct
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Buffer = bytes | bytearray | memoryview


class DataType:
    """One row of the table; rows are compared by identity."""

    __slots__ = ("_numpy", "config_name", "itemsize", "name", "number")

    def __init__(self, number: int, name: str, numpy_name: str, itemsize: int) -> None:
        self.number: int = number  # in the ModelConfig message and in channel frames
        self.name: str = name  # in the KServe protocol
        self.config_name: str = "TYPE_STRING" if name == "BYTES" else f"TYPE_{name}"
        self.itemsize: int = itemsize  # 0 for BYTES, whose elements vary in size
        self._numpy = None if name == "BF16" else np.dtype(numpy_name)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype of an array of this type; bytes objects for BYTES."""
        if self._numpy is None:
            # numpy has no bfloat16. The package takes 3 MiB, so it is imported only if needed.
            import ml_dtypes  # noqa: PLC0415

            self._numpy = np.dtype(ml_dtypes.bfloat16)
        return self._numpy

    def __repr__(self) -> str:
        return f"<DataType {self.name}>"


BOOL = DataType(1, "BOOL", "bool", 1)
UINT8 = DataType(2, "UINT8", "uint8", 1)
UINT16 = DataType(3, "UINT16", "<u2", 2)
UINT32 = DataType(4, "UINT32", "<u4", 4)
UINT64 = DataType(5, "UINT64", "<u8", 8)
INT8 = DataType(6, "INT8", "int8", 1)
INT16 = DataType(7, "INT16", "<i2", 2)
INT32 = DataType(8, "INT32", "<i4", 4)
INT64 = DataType(9, "INT64", "<i8", 8)
FP16 = DataType(10, "FP16", "<f2", 2)
FP32 = DataType(11, "FP32", "<f4", 4)
FP64 = DataType(12, "FP64", "<f8", 8)
BYTES = DataType(13, "BYTES", "object", 0)
BF16 = DataType(14, "BF16", "bfloat16", 2)

_ALL = (
    BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, FP32, FP64, BYTES, BF16,
)  # fmt: skip

BY_NAME: dict[str, DataType] = {dtype.name: dtype for dtype in _ALL}
BY_CONFIG_NAME: dict[str, DataType] = {dtype.config_name: dtype for dtype in _ALL}
BY_NUMBER: dict[int, DataType] = {dtype.number: dtype for dtype in _ALL}
# By dtype object: usual arrays need one lookup, which saves 5 us where names are compared.
_BY_NUMPY: dict[np.dtype[Any], DataType] = {
    dtype.numpy: dtype for dtype in _ALL if dtype is not BF16
}
_BY_NUMPY_STR: dict[str, DataType] = {dtype.numpy.str: dtype for dtype in _ALL if dtype is not BF16}


def from_numpy(dtype: np.dtype[Any]) -> DataType | None:
    """Returns the datatype of arrays with `dtype`; None if the protocol has none."""
    usual = _BY_NUMPY.get(dtype)
    if usual is not None:
        return usual
    if dtype.kind in "SU":
        return BYTES
    if dtype.name == "bfloat16":
        return BF16
    return _BY_NUMPY_STR.get(dtype.newbyteorder("<").str)


_LENGTH = struct.Struct("<I")
_MANY_BYTES = 1024  # for fewer, a loop over the elements is as fast


def encode_bytes(elements: Sequence[bytes]) -> bytes:
    """Encode BYTES elements: for each one its length in 4 bytes, little-endian, then its bytes."""
    prefixes = {length: _LENGTH.pack(length) for length in set(map(len, elements))}
    ordered = map(prefixes.__getitem__, map(len, elements))
    return b"".join(chain.from_iterable(zip(ordered, elements, strict=True)))


def decode_bytes(data: Buffer) -> list[bytes]:
    """Decode the elements of a BYTES buffer; raises ValueError if it ends inside an element."""
    raw = bytes(data)
    elements = _decode_equal_lengths(raw)
    if elements is not None:
        return elements
    elements = []
    unpack = _LENGTH.unpack_from
    end = len(raw)
    at = 0
    while at < end:
        if end - at < 4:
            raise ValueError(f"expected a 4-byte length at offset {at}, got {end - at} bytes")
        start = at + 4
        at = start + unpack(raw, at)[0]
        if at > end:
            raise ValueError(
                f"element at offset {start - 4} needs {at - start} bytes, got {end - start}"
            )
        elements.append(raw[start:at])
    return elements


def bytes_runs(data: Buffer, count: int) -> Iterator[tuple[int, int, int]]:
    """Yields runs of up to `count` BYTES elements: start, end, and the number of elements.

    It allocates no memory that grows with the number of elements, and lets other threads run.

    Raises:
        ValueError: The data ends inside an element.
    """
    unpack = _LENGTH.unpack_from
    last = len(data) - 4
    start = at = number = 0
    while at <= last:
        at += 4 + unpack(data, at)[0]
        number += 1
        if number == count:
            yield start, min(at, len(data)), number
            start, number = at, 0
    if at != len(data):
        raise ValueError(f"expected elements that end at {len(data)}, got one until {at}")
    if number:
        yield start, at, number


class BytesWalk(NamedTuple):
    """The result of reading the length prefixes of BYTES elements."""

    found: int  # number of elements
    start: int  # of the last element, after its prefix
    end: int  # of the last element; beyond the data if that is too short


def walk_bytes(data: Buffer, count: int) -> BytesWalk:
    """Read the length prefixes of `count` BYTES elements, or of fewer if the data ends before.

    It takes 0.1 us per element, less if all have the same length, and lets other threads run.
    """
    size = len(data)
    if size >= _MANY_BYTES and 0 < count <= size // 4:
        length = _LENGTH.unpack_from(data)[0]
        if count * (4 + length) == size:
            prefixes = np.ndarray((count,), "<u4", memoryview(data), 0, (4 + length,))
            if (prefixes == length).all():
                return BytesWalk(count, size - length, size)
    unpack = _LENGTH.unpack_from
    position = start = found = 0
    last = size - 4
    while found < count and position <= last:
        start = position + 4
        position = start + unpack(data, position)[0]
        found += 1
    return BytesWalk(found, start, position)


def _decode_equal_lengths(raw: bytes) -> list[bytes] | None:
    """Decode elements of equal length, four times as fast; returns None if lengths differ."""
    if len(raw) < _MANY_BYTES:
        return None
    (length,) = _LENGTH.unpack_from(raw)
    if not length or len(raw) % (4 + length):
        return None
    rows = np.frombuffer(raw, np.dtype([("length", "<u4"), ("element", f"V{length}")]))
    if not (rows["length"] == length).all():
        return None
    elements: list[bytes] = rows["element"].tolist()
    return elements


def array_to_bytes_elements(array: NDArray[Any]) -> list[bytes]:
    """Returns the elements of an object, 'S' or 'U' array as bytes; str is encoded as UTF-8."""
    if array.dtype.kind == "U":
        array = np.char.encode(array, "utf-8")
    flat: list[Any] = array.ravel().tolist()
    return [element.encode() if isinstance(element, str) else bytes(element) for element in flat]


def bytes_elements_to_array(elements: list[bytes], shape: tuple[int, ...]) -> NDArray[np.object_]:
    """Make an object array of `shape` from `elements`."""
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(shape)
