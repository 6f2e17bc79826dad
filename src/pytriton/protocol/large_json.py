# SPDX-License-Identifier: Apache-2.0
"""Parses large JSON requests with little more memory than their text and their tensors need.

The results are those of `protocol.kserve_json` and `protocol.generate`, which create an
object for every element. Here the parser only locates the data of a tensor, which is then parsed in
pieces. A request that is not plain (errors, NaN, empty arrays) is parsed by those modules as a
whole, so that errors and leniency are in one place. A JSON parser blocks all other threads, so this
module is meant for a separate process.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import numpy as np
import orjson
from msgspec import UNSET, UnsetType

from pytriton.base import dtypes
from pytriton.base.errors import InvalidArgumentError, ServerError
from pytriton.protocol.generate import PackedElements, parse_generate, request_from_members
from pytriton.protocol.json_text import MAX_NESTING, load_members
from pytriton.protocol.kserve_json import (
    RequestDocument,
    Unsigned,
    read_document,
    request_from_document,
)
from pytriton.protocol.tensor_json import tensor_from_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytriton.base.dtypes import Buffer, DataType
    from pytriton.base.messages import InferRequest
    from pytriton.base.model_spec import ModelSpec
    from pytriton.protocol.kserve_json import OutputFormat

MAX_OBJECTS = 100_000
_PIECE_BYTES = 1 << 20
_PIECE_STRINGS = 10_000
# The approximate size of an empty list, and of a number with its slot in a list.
_ARRAY_BYTES = 72
_ELEMENT_BYTES = 40
# A string without an end reaches to the end of the text, so that this takes linear time.
_STRING_OR_OBJECT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|\{', re.DOTALL)
_SEPARATED_STRING = re.compile(rb'([\s,\[\]]*)("[^"\\]*(?:\\.[^"\\]*)*")', re.DOTALL)


class _IrregularError(Exception):
    """The text has to be parsed as a whole."""


class _TooLargeError(InvalidArgumentError):
    """An input is too large to be parsed in any way."""


_FALLBACK_ERRORS = (_IrregularError, ServerError, ValueError, msgspec.MsgspecError, RecursionError)


class _InputParts(msgspec.Struct, gc=False):
    """An element of `inputs` with unparsed data."""

    name: str
    datatype: str
    shape: tuple[Unsigned, ...]
    data: msgspec.Raw | UnsetType = UNSET
    parameters: Any = UNSET


class _RequestParts(msgspec.Struct, gc=False):
    inputs: list[_InputParts]
    id: str = ""
    parameters: dict[str, Any] | UnsetType = UNSET
    outputs: list[Any] | UnsetType = UNSET


_decode_parts = msgspec.json.Decoder(_RequestParts).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(list[Any]).decode


def parse_large_infer(
    text: bytes,
    body: Buffer,
    spec: ModelSpec,
    max_bytes: int,
    memory_bytes: int,
) -> tuple[InferRequest, OutputFormat]:
    """Parse an infer request like `pytriton.protocol.kserve_json.parse_infer`.

    Of `body` only the size counts. An input may have `max_bytes`, parsing may take `memory_bytes`.

    Raises:
        ServerError: The request is malformed.
    """
    check_objects(text)

    def read_raw(raw: msgspec.Raw, dtype: DataType, count: int, name: str) -> Buffer:
        if count * dtype.itemsize > max_bytes:
            _refuse_size(name, count * dtype.itemsize, max_bytes)
        data, found = _read_array(bytes(raw), dtype, name, _decode_list)
        if dtype is not dtypes.BYTES and found != count:
            raise _IrregularError
        return data

    try:
        parts = _decode_parts(text)
        return request_from_document(_with_raw(parts), body, len(text), spec, "", read_raw)
    except _TooLargeError:
        raise
    except _FALLBACK_ERRORS:
        check_memory(text, memory_bytes)
        return request_from_document(read_document(text), body, len(text), spec)


def parse_large_generate(text: bytes, spec: ModelSpec, memory_bytes: int) -> InferRequest:
    """Parse a generate request like `pytriton.protocol.generate.parse_generate`.

    Raises:
        ServerError: The request is malformed.
    """
    check_objects(text)
    try:
        raws = _decode_members(text)
        _check_repeats(text, raws)
        members = {key: _read_value(raw, spec, key) for key, raw in raws.items()}
        return request_from_members(members, spec)
    except _FALLBACK_ERRORS:
        check_memory(text, memory_bytes)
        return parse_generate(text, spec)


def check_objects(text: bytes) -> None:
    """Check the number of JSON objects in a text before it is parsed.

    Raises:
        InvalidArgumentError: There are more objects than any valid request has.
    """
    if text.count(b"{") <= MAX_OBJECTS:
        return
    objects = (match for match in _STRING_OR_OBJECT.finditer(text) if match[0] == b"{")
    if len(list(islice(objects, MAX_OBJECTS + 1))) > MAX_OBJECTS:
        raise InvalidArgumentError(
            f"expected at most {MAX_OBJECTS} objects in the JSON of a request, got more"
        )


def check_memory(text: bytes, allowed_bytes: int) -> None:
    """Check how much memory the objects of a text would take, before it is parsed.

    Raises:
        InvalidArgumentError: They would take more than `allowed_bytes`.
    """
    arrays, elements = text.count(b"["), text.count(b",")
    needed = len(text) + arrays * _ARRAY_BYTES + elements * _ELEMENT_BYTES
    if needed > allowed_bytes:
        raise InvalidArgumentError(
            f"expected JSON that is read with at most {allowed_bytes} bytes of memory, got "
            f"{len(text)} bytes of it with {arrays} arrays and {elements} commas"
        )


def _refuse_size(name: str, size: int, max_bytes: int) -> NoReturn:
    raise _TooLargeError(
        f"JSON input '{name}' has a byte_size ({size} bytes) that exceeds the maximum allowed "
        f"value of {max_bytes} bytes. Use --http-max-input-size to increase the limit."
    )


def _with_raw(parts: _RequestParts) -> RequestDocument:
    inputs: list[Any] = parts.inputs  # only their data differs, which `read_raw` converts
    return RequestDocument(inputs, parts.id, parts.parameters, parts.outputs)


def _check_repeats(text: bytes, raws: dict[str, msgspec.Raw]) -> None:
    """Check that no name is repeated: each member has a colon, beside those in its value.

    Raises:
        _IrregularError: A name may be repeated.
    """
    colons = len(raws) + sum(bytes(raw).count(b":") for raw in raws.values())
    if text.count(b":") != colons or any(":" in name for name in raws):
        raise _IrregularError


def _read_value(raw: msgspec.Raw, spec: ModelSpec, key: str) -> Any:
    expected = spec.inputs.get(key)
    text = bytes(raw)
    # Here each inner array is one element, so an array with inner arrays is parsed as a whole.
    if expected is None or not text.startswith(b"[") or text.count(b"[") > 1:
        return load_members(text)
    data, count = _read_array(text, expected.dtype, key, orjson.loads)
    return PackedElements(count, data)


def _read_array(
    raw: bytes, dtype: DataType, name: str, decode: Callable[[bytes], list[Any]]
) -> tuple[bytes, int]:
    """Returns the bytes of a tensor and the number of its elements."""
    if not raw.startswith(b"["):
        raise _IrregularError
    pieces = _string_pieces(raw) if dtype is dtypes.BYTES else _number_pieces(raw)
    parts = []
    count = 0
    for piece in pieces:
        elements = decode(b"[%b]" % piece)
        parts.append(tensor_from_json(elements, dtype, len(elements), name))
        count += len(elements)
    return b"".join(parts), count


def _number_pieces(raw: bytes) -> Iterator[bytes]:
    """Yields the elements of nested arrays of numbers, which are known to be well-formed."""
    if raw.count(b"[") >= MAX_NESTING:
        _check_depth(raw, 0)
    start = 0
    while start < len(raw):
        end = raw.find(b",", start + _PIECE_BYTES)
        end = len(raw) if end < 0 else end
        yield raw[start:end].translate(None, b"[]")
        start = end + 1


def _string_pieces(raw: bytes) -> Iterator[bytes]:
    """Yields the elements of nested arrays of strings, which are known to be well-formed."""
    end = depth = 0
    strings = _separated_strings(raw)
    while batch := list(islice(strings, _PIECE_STRINGS)):
        end = batch[-1].end()
        depth = _check_depth(b"".join(match[1] for match in batch), depth)
        yield b",".join(match[2] for match in batch)
    if raw[end:].strip(b" \t\r\n,[]"):  # there is another value
        raise _IrregularError


def _separated_strings(raw: bytes) -> Iterator[re.Match[bytes]]:
    """Yields the strings that `raw` begins with.

    A search for the next string would take quadratic time where separators and no string follow.
    """
    match = _SEPARATED_STRING.match(raw)
    while match is not None:
        yield match
        match = _SEPARATED_STRING.match(raw, match.end())


def _check_depth(raw: bytes, depth: int) -> int:
    """Returns how many arrays are open after `raw`; _IrregularError if nested too deeply."""
    for start in range(0, len(raw), _PIECE_BYTES):
        piece = np.frombuffer(raw[start : start + _PIECE_BYTES], np.uint8)
        steps = (piece == ord("[")).astype(np.int8) - (piece == ord("]"))
        depths = depth + np.cumsum(steps, dtype=np.int64)
        if depths.max(initial=0) >= MAX_NESTING:
            raise _IrregularError
        depth = int(depths[-1])
    return depth
