# SPDX-License-Identifier: Apache-2.0
"""Reads infer requests, and writes responses, of a known structure: all JSON, the same tensors.

The structure of requests is the type of a JSON decoder, so decoding also checks names, datatypes,
shapes and numbers. Whatever such a decoder does not accept has to be read by
`pytriton.protocol.kserve_json`, which also finds the error. The text of responses is the same as
that of `pytriton.protocol.kserve_response`, which has to be used for NaN and many elements.
"""

from __future__ import annotations

import struct
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import orjson

from pytriton.base.dtypes import FP32, FP64
from pytriton.protocol.columns import structure_of
from pytriton.protocol.sequence import MAX_TEXT_LENGTH
from pytriton.protocol.tensor_json import SMALL_ELEMENTS, json_type, struct_code

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytriton.base.dtypes import Buffer, DataType
    from pytriton.base.messages import InferRequest, ParameterValue
    from pytriton.protocol.columns import BatchColumn

# What a body of another structure, or with values that do not fit, raises.
_OTHERWISE = (
    msgspec.DecodeError, UnicodeDecodeError, RecursionError, struct.error, OverflowError,
)  # fmt: skip
_literal: Any = Literal  # of values that are known at run time only

# The structure of a request: name, datatype and shape of its inputs in the client's order.
Structure = tuple[tuple[str, "DataType", tuple[int, ...]], ...]

# An id of a sequence. Others are valid, too, but have to be read fully.
SequenceId = (
    Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)] | Annotated[str, msgspec.Meta(min_length=1)]
)


class SequenceParameters(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The parameters of a request that has none but those of its sequence."""

    sequence_id: SequenceId
    sequence_start: bool = False
    sequence_end: bool = False

    @property
    def flags(self) -> int:
        """The flags of the request, as `InferRequest` has them."""
        return self.sequence_start + 2 * self.sequence_end


def request_structure(request: InferRequest, *, in_sequence: bool = False) -> Structure | None:
    """Returns the structure of a valid request; None if requests like it need to be read fully.

    With `in_sequence` its model has sequences: the ids and the flags of requests may differ.
    """
    if in_sequence:
        if not request.correlation_id:
            return None
    elif request.correlation_id or request.flags:
        return None
    if (
        request.id
        or request.outputs is not None
        or request.parameters
        or request.priority
        or request.timeout_us
    ):
        return None
    inputs = request.inputs.values()
    for tensor in inputs:
        if json_type(tensor.dtype) is None or not tensor.data:
            return None
    return tuple([(tensor.name, tensor.dtype, tensor.shape) for tensor in inputs])


class JsonRequestPattern:
    """A reader of the requests with one structure. Making it takes 0.4 ms."""

    __slots__ = ("_decode", "_packs")

    def __init__(self, structure: Structure, *, in_sequence: bool = False) -> None:
        inputs = []
        self._packs = []
        for name, dtype, shape in structure:
            # The decoder compares names, datatypes and sizes while it reads: nothing is compared
            # again.
            sizes = tuple([_literal[size] for size in shape])
            fields = [
                ("name", _literal[name]),
                ("datatype", _literal[dtype.name]),
                ("shape", tuple.__class_getitem__(sizes)),
                ("data", list.__class_getitem__(json_type(dtype))),
            ]
            inputs.append(msgspec.defstruct("Input", fields, gc=False, forbid_unknown_fields=True))
            # A wrong number of elements, or a value out of range, raises in `pack`.
            self._packs.append(struct.Struct(f"<{prod(shape)}{struct_code(dtype)}").pack)
        members: list[tuple[str, Any]] = [("inputs", tuple.__class_getitem__(tuple(inputs)))]
        if in_sequence:
            members.append(("parameters", SequenceParameters))
        root = msgspec.defstruct("Request", members, gc=False, forbid_unknown_fields=True)
        self._decode: Any = msgspec.json.Decoder(root).decode

    def read(self, body: Buffer) -> Sequence[bytes] | None:
        """Returns the bytes of each input, in the order of the structure.

        None if the body has another structure or is not valid.
        """
        try:
            inputs = self._decode(body).inputs
            read = []  # filled by a loop, because a comprehension takes 0.2 us more here
            for pack, tensor in zip(self._packs, inputs, strict=True):
                read.append(pack(*tensor.data))
            return read  # noqa: TRY300
        except _OTHERWISE:
            return None

    def read_in_sequence(self, body: Buffer) -> tuple[Sequence[bytes], SequenceParameters] | None:
        """Like `read`, for requests of sequences; returns the parameters, too."""
        try:
            request = self._decode(body)
            packed = [
                pack(*tensor.data) for pack, tensor in zip(self._packs, request.inputs, strict=True)
            ]
        except _OTHERWISE:
            return None
        parameters: SequenceParameters = request.parameters
        sequence_id = parameters.sequence_id
        if type(sequence_id) is str and len(sequence_id) > MAX_TEXT_LENGTH:
            return None
        return packed, parameters


_dumps = orjson.dumps


class JsonResponsePattern:
    """The text of responses with the same outputs, with gaps for their elements.

    `rows` is the batch dimension of each response; None if the model has none.
    """

    __slots__ = ("_is_usual", "_kinds", "_rows", "_template", "structure")

    def __init__(
        self,
        model_name: str,
        model_version: str,
        rows: int | None,
        columns: Sequence[BatchColumn],
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> None:
        self.structure = structure_of(columns)
        self._rows = rows or 1
        self._kinds: list[tuple[str, int, bool]] = []  # code, elements of a response, is a float
        self._is_usual = bool(columns)
        document: dict[str, Any] = {"model_name": model_name, "model_version": model_version}
        if parameters:
            document["parameters"] = parameters
        outputs = []
        for column in columns:
            dtype, row_elements = column.dtype, prod(column.shape)
            code, elements = struct_code(dtype), row_elements * self._rows
            self._kinds.append((code, elements, dtype is FP32 or dtype is FP64))
            if not (
                code
                and 0 < elements <= SMALL_ELEMENTS
                and column.row_bytes == row_elements * dtype.itemsize
            ):
                self._is_usual = False
            shape = column.shape if rows is None else (rows, *column.shape)
            output = {"name": column.name, "datatype": dtype.name, "shape": shape}
            outputs.append(_open(output) + b',"data":[%b]}')
        self._template = _open(document) + b',"outputs":[' + b",".join(outputs) + b"]}"

    def encode(
        self, columns: Sequence[BatchColumn], row: int, count: int
    ) -> Iterable[bytes] | None:
        """Returns the bodies of `count` responses whose rows begin at `row`.

        None if they have to be encoded one by one.
        """
        if not self._is_usual:
            return None
        texts = []
        end = row + count * self._rows
        for column, (code, elements, is_float) in zip(columns, self._kinds, strict=True):
            row_bytes = column.row_bytes
            data = column.data[row * row_bytes : end * row_bytes]
            # All elements of the batch are formatted in one call, and then split by commas.
            text = _dumps(struct.unpack(f"<{count * elements}{code}", data))[1:-1]
            if is_float and b"n" in text:  # JSON has no NaN and no infinities: they became null
                return None
            texts.append((text,) if count == 1 else _split(text, elements))
        template = self._template
        return [template % parts for parts in zip(*texts, strict=True)]


def _open(document: dict[str, Any]) -> bytes:
    """Returns the text of an object without its end, for a template."""
    # The text becomes a template of %-formatting: a percent sign in a name is doubled.
    return _dumps(document)[:-1].replace(b"%", b"%%")


def _split(text: bytes, elements: int) -> list[bytes]:
    """Split the numbers of a batch into those of each response."""
    numbers = text.split(b",")
    if elements == 1:
        return numbers
    return [
        b",".join(numbers[first : first + elements]) for first in range(0, len(numbers), elements)
    ]
