# SPDX-License-Identifier: Apache-2.0
"""Reads infer requests, and writes responses, of a known form: the same tensors, JSON or binary.

The form of requests is the type of a JSON decoder, so decoding also checks names, datatypes, shapes
and numbers. Ids and parameters may differ from request to request. Whatever such a decoder does not
accept has to be read by `pytriton.protocol.kserve_json`, which also finds the error. The bodies of
responses are the same as those of `pytriton.protocol.kserve_response`, which has to be used for NaN
and many elements.
"""

from __future__ import annotations

import struct
from itertools import repeat
from math import prod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import orjson

from pytriton.base.columns import Column, structure_of
from pytriton.base.dtypes import BYTES, FP32, FP64, decode_bytes, encode_bytes, walk_bytes
from pytriton.base.errors import ServerError
from pytriton.base.messages import NO_FIELDS, InferRequest, RequestFields
from pytriton.protocol.kserve_json import OutputChoice, OutputFormat, Unsigned, read_parameters
from pytriton.protocol.tensor_json import SMALL_ELEMENTS, json_type, struct_code

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytriton.base.dtypes import DataType
    from pytriton.base.messages import ParameterValue


class UnfitError(Exception):
    """A request has other strings than its form says."""


# What a body of another form, or with values that do not fit, raises.
_OTHERWISE = (
    msgspec.DecodeError, UnicodeError, RecursionError, struct.error, OverflowError, UnfitError,
)  # fmt: skip
_literal: Any = Literal  # of values that are known at run time only
_NOTHING = msgspec.Raw()

MAX_OUTPUT_TEXTS = 16  # spellings of the same outputs
MAX_PARAMETER_TEXTS = 256  # that need not be parsed again


class InputForm(NamedTuple):
    """One input of requests."""

    name: str
    dtype: DataType
    shape: tuple[int, ...]
    is_binary: bool  # its bytes follow the JSON


class RequestForm(NamedTuple):
    """What requests have in common that one pattern reads, and one answers."""

    inputs: tuple[InputForm, ...]  # in the client's order
    outputs: tuple[str, ...] | None
    default: OutputChoice
    listed: tuple[tuple[str, OutputChoice], ...]

    @property
    def output_format(self) -> OutputFormat:
        return OutputFormat(self.default, dict(self.listed))


def request_form(request: InferRequest, output_format: OutputFormat) -> RequestForm | None:
    """Returns the form of a valid request; None if requests like it need to be read fully."""
    default, listed = output_format
    if request.uses_regions or any(each.class_count for each in (default, *listed.values())):
        return None
    inputs = []
    for tensor in request.inputs.values():
        # The bytes of a binary input are a slice of the body.
        is_binary = type(tensor.data) is memoryview
        is_possible = is_binary or tensor.dtype is BYTES or json_type(tensor.dtype)
        if not is_possible or not len(tensor.data):
            return None
        inputs.append(InputForm(tensor.name, tensor.dtype, tensor.shape, is_binary))
    return RequestForm(tuple(inputs), request.outputs, default, tuple(listed.items()))


class HttpRequestPattern:
    """A reader of the requests with one form. Making it takes 0.4 ms.

    `learn` has to be called with a request of the form before others are read.
    """

    __slots__ = (
        "_counts", "_decode", "_default", "_has_strings", "_output_texts", "_packs", "_parameters",
        "_split",
    )  # fmt: skip

    def __init__(self, form: RequestForm) -> None:
        inputs = []
        self._packs: list[Any] = []  # of each input; None if it is binary
        self._counts: list[
            int
        ] = []  # of the elements of each input, if it has strings; otherwise 0
        self._has_strings = any(each.dtype is BYTES for each in form.inputs)
        sizes = []
        for name, dtype, shape, is_binary in form.inputs:
            # The decoder compares names, datatypes and sizes while it reads: nothing is compared
            # again.
            fields: list[tuple[str, Any]] = [
                ("name", _literal[name]),
                ("datatype", _literal[dtype.name]),
                ("shape", tuple.__class_getitem__(tuple([_literal[size] for size in shape]))),
            ]
            count = prod(shape)
            self._counts.append(count if dtype is BYTES else 0)
            if is_binary:
                sizes.append(count * dtype.itemsize)
                size = Unsigned if dtype is BYTES else _literal[sizes[-1]]
                fields.append(("parameters", _strict_type("Size", [("binary_data_size", size)])))
                self._packs.append(None)
            elif dtype is BYTES:
                fields.append(("data", list[str]))
                self._packs.append(_pack_strings)
            else:
                fields.append(("data", list.__class_getitem__(json_type(dtype))))
                # A wrong number of elements, or a value out of range, raises in `pack`.
                self._packs.append(struct.Struct(f"<{count}{struct_code(dtype)}").pack)
            inputs.append(_strict_type("Input", fields))
        # Raises if other bytes follow the JSON than those of the binary inputs.
        self._split = struct.Struct("".join([f"{size}s" for size in sizes])).unpack
        root = _strict_type(
            "Request",
            [
                ("inputs", tuple.__class_getitem__(tuple(inputs))),
                ("id", str, ""),
                ("outputs", msgspec.Raw, _NOTHING),
                ("parameters", msgspec.Raw, _NOTHING),
            ],
        )
        self._decode: Any = msgspec.json.Decoder(root).decode
        self._default = form.default
        self._output_texts: set[bytes] = set()
        self._parameters: dict[bytes, RequestFields] = {}

    def learn(self, text: bytes, tail: bytes, request: InferRequest) -> bool:
        """Accept how a request of the form has written its outputs.

        Returns whether `read` then reads the same as the parser, which has read `request`.
        """
        try:
            outputs = bytes(self._decode(text).outputs)
        except _OTHERWISE:
            return False
        if len(self._output_texts) >= MAX_OUTPUT_TEXTS:
            self._output_texts.clear()
        self._output_texts.add(outputs)
        read = self.read(text, tail)
        if read is None:
            return False
        inputs, fields = read
        return [*inputs] == [bytes(each.data) for each in request.inputs.values()] and (
            fields == request.fields
        )

    def read(self, text: bytes, tail: bytes) -> tuple[Sequence[bytes], RequestFields] | None:
        """Read a body: its JSON, and what follows.

        Returns the bytes of each input in the order of the form, and the rest of the request. None
        if the body has another form or is not valid.
        """
        try:
            document = self._decode(text)
            packs = self._packs
            inputs: Sequence[bytes]
            pieces = () if self._has_strings else self._split(tail)
            if self._has_strings:
                inputs = self._read_strings(document.inputs, tail)
            elif not pieces:
                inputs = read = []  # filled by a loop: a comprehension takes 0.2 us more here
                for pack, tensor in zip(packs, document.inputs, strict=True):
                    read.append(pack(*tensor.data))
            elif len(pieces) == len(packs):
                inputs = pieces
            else:
                rest = iter(pieces)
                inputs = [
                    next(rest) if pack is None else pack(*tensor.data)
                    for pack, tensor in zip(packs, document.inputs, strict=True)
                ]
        except _OTHERWISE:
            return None
        if bytes(document.outputs) not in self._output_texts:
            return None
        fields = NO_FIELDS
        if document.parameters is not _NOTHING:
            written = bytes(document.parameters)
            known = self._parameters.get(written) or self._read_parameters(written)
            if known is None:
                return None
            fields = known
        if document.id:
            fields = fields.with_id(document.id)
        return inputs, fields

    def _read_strings(self, tensors: Sequence[Any], tail: bytes) -> list[bytes]:
        """Returns the bytes of inputs, some of which have strings; raises if one is not valid."""
        inputs = []
        end = 0
        for pack, count, tensor in zip(self._packs, self._counts, tensors, strict=True):
            if pack is None:
                start, end = end, end + tensor.parameters.binary_data_size
                data = tail[start:end]
                # The last string ends with the data, and there are as many as the shape says.
                if count and not _has_strings(data, count):
                    raise UnfitError
            elif count and len(tensor.data) != count:
                raise UnfitError
            else:
                data = pack(*tensor.data)
            inputs.append(data)
        if end != len(tail):
            raise UnfitError
        return inputs

    def split(self, tail: bytes) -> Sequence[bytes] | None:
        """Returns the inputs of a request whose JSON was read before, if all of them are binary."""
        try:
            return self._split(tail)
        except struct.error:
            return None

    def _read_parameters(self, text: bytes) -> RequestFields | None:
        fields = RequestFields()
        try:
            parameters = msgspec.json.decode(text, type=dict[str, Any])
            is_binary = read_parameters(parameters, fields)
        except (ServerError, *_OTHERWISE):
            return None
        if is_binary is not self._default.binary:
            return None
        if len(self._parameters) >= MAX_PARAMETER_TEXTS:
            self._parameters.clear()
        self._parameters[text] = fields
        return fields


def _pack_strings(*texts: str) -> bytes:
    return encode_bytes([text.encode() for text in texts])


def _has_strings(data: bytes, count: int) -> bool:
    """Returns whether the data of a BYTES tensor has just this number of strings."""
    if count == 1:  # as often
        return len(data) >= 4 and int.from_bytes(data[:4], "little") == len(data) - 4
    found, _, position = walk_bytes(data, count)
    return found == count and position == len(data)


def _strict_type(name: str, fields: list[Any]) -> type:
    return msgspec.defstruct(name, fields, gc=False, forbid_unknown_fields=True)


_dumps = orjson.dumps

# The length of the JSON of a response, or None if nothing follows it; and its whole body.
Body = tuple[int | None, bytes]


class HttpResponsePattern:
    """The text of responses with the same outputs, with gaps for their elements and ids.

    `rows` is the batch dimension of each response; None if the model has none.
    """

    __slots__ = ("_is_usual", "_kinds", "_plain", "_rows", "_template", "structure")

    def __init__(
        self,
        model_name: str,
        model_version: str,
        rows: int | None,
        columns: Sequence[Column],
        parameters: Mapping[str, ParameterValue] | None,
        output_format: OutputFormat,
    ) -> None:
        self.structure = structure_of(columns)
        self._rows = rows or 1
        # Of each output: the code and the number of its elements in JSON, and whether they are
        # floats; or how its bytes are cut into those of each response. The code of strings is empty
        # in JSON, and that of binary ones None.
        self._kinds: list[tuple[str | None, int, bool] | None] = []
        self._is_usual = bool(columns)
        document: dict[str, Any] = {"model_name": model_name, "model_version": model_version}
        if parameters:
            document["parameters"] = parameters
        outputs = []
        default, listed = output_format
        for column in columns:
            dtype, size = column.dtype, column.row_bytes * self._rows
            elements = prod(column.shape) * self._rows
            shape = column.shape if rows is None else (rows, *column.shape)
            output = {"name": column.name, "datatype": dtype.name, "shape": shape}
            is_binary = listed.get(column.name, default).binary
            if dtype is BYTES:
                self._kinds.append((None if is_binary else "", elements, False))
                text = b',"parameters":{"binary_data_size":%b}}' if is_binary else b',"data":[%b]}'
                outputs.append(_template(output)[:-1] + text)
                self._is_usual = self._is_usual and 0 < elements <= SMALL_ELEMENTS
                continue
            if is_binary:
                self._kinds.append(None)
                outputs.append(_template({**output, "parameters": {"binary_data_size": size}}))
                self._is_usual = self._is_usual and size > 0
                continue
            code = struct_code(dtype)
            self._kinds.append((code, elements, dtype is FP32 or dtype is FP64))
            is_small = 0 < elements <= SMALL_ELEMENTS and size == elements * dtype.itemsize
            self._is_usual = self._is_usual and bool(code) and is_small
            outputs.append(_template(output)[:-1] + b',"data":[%b]}')
        # The id, if there is one, is the first member.
        text = _template(document)[1:-1]
        self._template = b"{%b" + text + b',"outputs":[' + b",".join(outputs) + b"]}"
        # The JSON of responses without an id, whose outputs all are binary, is the same for all.
        is_binary = all(kind is None for kind in self._kinds)
        self._plain = self._template % b"" if is_binary else b""

    def encode(
        self, columns: Sequence[Column], row: int, count: int, ids: Sequence[str] | None
    ) -> Iterable[Body] | None:
        """Returns the bodies of `count` responses whose rows begin at `row`.

        `ids` are those of the requests; None if no request has one. Returns None if the responses
        have to be encoded one by one.
        """
        if not self._is_usual:
            return None
        texts: list[Iterable[bytes]] = []
        tails: list[Iterable[bytes]] = []
        end = row + count * self._rows
        for column, kind in zip(columns, self._kinds, strict=True):
            if kind is None:
                tails.append(column.parts(row, count, self._rows))
                continue
            code, elements, is_float = kind
            if not code:
                pieces = list(column.parts(row, count, self._rows))
                if code is None:
                    tails.append(pieces)
                    texts.append([b"%d" % len(piece) for piece in pieces])
                    continue
                written = _string_texts(pieces, elements)
                if written is None:
                    return None
                texts.append(written)
                continue
            # All elements of the batch are formatted in one call, and then split by commas.
            text = _dumps(struct.unpack(f"<{count * elements}{code}", column.part(row, end)))[1:-1]
            if is_float and b"n" in text:  # JSON has no NaN and no infinities: they became null
                return None
            texts.append((text,) if count == 1 else _split(text, elements))
        if ids is None and self._plain:
            # Without a loop in Python, a body takes a fifth of the time.
            bodies = map(b"".join, zip(repeat(self._plain, count), *tails, strict=True))
            return zip(repeat(len(self._plain)), bodies, strict=False)
        return self._encode_each(texts, tails, count, ids)

    def _encode_each(
        self,
        texts: Sequence[Iterable[bytes]],
        tails: Sequence[Iterable[bytes]],
        count: int,
        ids: Sequence[str] | None,
    ) -> Iterable[Body]:
        """Returns the bodies of responses whose JSON differs."""
        template = self._template
        members: Iterable[bytes] = repeat(b"", count)
        if ids is not None:
            members = [b'"id":%b,' % _dumps(each) if each else b"" for each in ids]
        documents = [template % parts for parts in zip(members, *texts, strict=True)]
        if not tails:
            return zip(repeat(None), documents, strict=False)
        bodies = map(b"".join, zip(documents, *tails, strict=True))
        return zip(map(len, documents), bodies, strict=True)


def _string_texts(pieces: Sequence[bytes], elements: int) -> list[bytes] | None:
    """Returns the strings of responses in JSON; None if one has to be written in another way."""
    texts = []
    for piece in pieces:
        try:
            strings = [string.decode() for string in decode_bytes(piece)]
        except ValueError:  # no UTF-8, or not complete
            return None
        if len(strings) != elements:
            return None
        texts.append(_dumps(strings)[1:-1])
    return texts


def _template(document: dict[str, Any]) -> bytes:
    """Returns the text of an object, for a template."""
    # The text becomes a template of %-formatting: a percent sign in a name is doubled.
    return _dumps(document).replace(b"%", b"%%")


def _split(text: bytes, elements: int) -> list[bytes]:
    """Split the numbers of a batch into those of each response."""
    numbers = text.split(b",")
    if elements == 1:
        return numbers
    return [
        b",".join(numbers[first : first + elements]) for first in range(0, len(numbers), elements)
    ]
