# SPDX-License-Identifier: Apache-2.0
"""The infer request of the KServe protocol over gRPC: a ModelInferRequest message.

Its top level is cut by hand, so that raw tensors stay views of what was received; the small parts
are read by protobuf, once for each content, as clients send the same ones again and again. For a
request with two small inputs that takes 3 us; reading the whole message with protobuf takes 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from google.protobuf.message import DecodeError

from pytriton import dtypes
from pytriton.dtypes import DataType
from pytriton.engine.model_spec import ModelSpec
from pytriton.errors import InternalError, InvalidArgumentError
from pytriton.messages import InferRequest, InferTensor, ResponseSink
from pytriton.protos import service_pb2
from pytriton.wire.kserve_pb_parameters import class_count, read_parameters
from pytriton.wire.output_format import unknown_region
from pytriton.wire.tensor_contents import tensor_from_contents

if TYPE_CHECKING:
    from pytriton.dtypes import Buffer

_Request = service_pb2.ModelInferRequest
_parse_input = _Request.InferInputTensor.FromString
_parse_output = _Request.InferRequestedOutputTensor.FromString

# The tags of the message's fields: each has a length and then so many bytes.
_MODEL_NAME, _MODEL_VERSION, _ID, _PARAMETERS, _INPUTS, _OUTPUTS, _RAW = (
    number << 3 | 2 for number in range(1, 8)
)
# From this size on a message's tensors are views of it; in a smaller one, copies cost less.
_VIEW_BYTES = 16 << 10
_MAX_START_BYTES = 4096  # in which the first raw tensor has to begin for `read_start`
_MAX_KNOWN = 1024
_MAX_KNOWN_BYTES = 512
_INVALID = DataType(0, "<invalid>", "uint8", 1)


class _Input(NamedTuple):
    """An element of `inputs`."""

    name: str
    dtype: DataType
    shape: tuple[int, ...]
    contents: Any = None  # an InferTensorContents message, where the tensor is typed
    region: str | None = None


class _Output(NamedTuple):
    """An element of `outputs`."""

    name: str
    parameters: Any  # of the message


class InferForm(msgspec.Struct, gc=False):
    """The parts of a request message, but for raw tensors, before anything is made of them."""

    model_name: str = ""
    model_version: str = ""
    id: str = ""
    parameters: Any = None  # of a message
    inputs: Sequence[_Input] = ()
    outputs: Sequence[_Output] = ()


class BuiltRequest(msgspec.Struct, gc=False):
    """A request for the engine, and what only its front end needs to know."""

    request: InferRequest
    class_counts: dict[str, int] | None = None  # outputs that are wanted as classes
    wants_empty_final: bool = False


class MessageStart(NamedTuple):
    """What the beginning of a message tells of the rest."""

    model_name: str
    model_version: str
    raw_offset: int  # of the bytes of its first raw tensor


def read_start(start: Buffer) -> MessageStart | None:
    """Look at the beginning of a message whose rest is still to come; None without raw tensors.

    What it says is a guess: only `read_infer_form` can tell whether the message is a valid one.
    """
    start = start[:_MAX_START_BYTES]
    texts = {_MODEL_NAME: "", _MODEL_VERSION: ""}
    at = 0
    while at < len(start):
        tag = start[at]
        size, content = _length(start, at + 1)
        if tag == _RAW:
            return MessageStart(texts[_MODEL_NAME], texts[_MODEL_VERSION], content)
        at = content + size
        if tag in texts:
            texts[tag] = str(start[content:at], "utf-8", "replace")
    return None


def read_infer_form(message: Buffer) -> tuple[InferForm, Sequence[Buffer]]:
    """Cut a request message into its parts and its raw tensors.

    Raises:
        InternalError: It is no ModelInferRequest.
    """
    if len(message) >= _VIEW_BYTES:
        message = memoryview(message)
    try:
        if isinstance(message, bytes):
            # What precedes the first ":", the tag of raw tensors, is known if it came before.
            end = message.find(_RAW)
            form = _known_forms.get(message[:end])
            if form is not None and (raw := _cut_raw(message, end)) is not None:
                return form, raw
        return _cut(message) or _read_whole(_Request.FromString(bytes(message)))
    except (DecodeError, UnicodeDecodeError):
        raise InternalError("Unable to parse request") from None


def _cut(message: Buffer) -> tuple[InferForm, Sequence[Buffer]] | None:
    """The parts of a message as all writers lay it out; None where it has anything unusual."""
    end = len(message)
    inputs: list[_Input] = []
    outputs: list[_Output] = []
    texts = {_MODEL_NAME: "", _MODEL_VERSION: "", _ID: ""}
    parameters = b""
    at = 0
    while at < end - 1:
        begin, tag = at, message[at]
        if tag == _RAW:
            break
        size, start = _length(message, at + 1)
        at = start + size
        part = bytes(message[start:at])
        if tag == _INPUTS:
            inputs.append(_known_inputs.get(part) or _read_input(part))
        elif tag == _OUTPUTS:
            outputs.append(_known_outputs.get(part) or _read_output(part))
        elif tag in texts:
            texts[tag] = str(part, "utf-8")
        elif tag == _PARAMETERS:
            parameters += message[begin:at]
        else:
            return None
    raw = _cut_raw(message, at)
    if raw is None:
        return None
    form = InferForm(texts[_MODEL_NAME], texts[_MODEL_VERSION], texts[_ID], None, inputs, outputs)
    if parameters:
        form.parameters = _Request.FromString(parameters).parameters
    elif not form.id and at <= _MAX_KNOWN_BYTES:
        _remember(_known_forms, bytes(message[:at]), form)
    return form, raw


def _cut_raw(message: Buffer, at: int) -> list[Buffer] | None:
    """The raw tensors, which are the rest of a message; None where something else follows."""
    raw: list[Buffer] = []
    end = len(message)
    while at < end - 1 and message[at] == _RAW:
        size = message[at + 1]
        start = at + 2
        if size > 127:
            size, start = _length(message, at + 1)
        at = start + size
        raw.append(message[start:at])
    return raw if at == end else None


def _length(message: Buffer, at: int) -> tuple[int, int]:
    """The length of a field, and where it ends; one that does not end is too long."""
    size = shift = 0
    for byte in message[at : at + 5]:
        size |= (byte & 127) << shift
        shift += 7
        at += 1
        if byte < 128:
            return size, at
    return len(message), at


def _read_whole(message: Any) -> tuple[InferForm, Sequence[Buffer]]:
    form = InferForm(
        message.model_name,
        message.model_version,
        message.id,
        message.parameters,
        [_make_input(item) for item in message.inputs],
        [_Output(item.name, item.parameters) for item in message.outputs],
    )
    return form, message.raw_input_contents


_known_forms: dict[bytes, InferForm] = {}
_known_inputs: dict[bytes, _Input] = {}
_known_outputs: dict[bytes, _Output] = {}


def _remember(known: dict[bytes, Any], content: bytes, value: Any) -> None:
    if len(known) >= _MAX_KNOWN:
        known.clear()
    known[content] = value


def _read_input(content: bytes) -> _Input:
    item = _make_input(_parse_input(content))
    if item.contents is None and len(content) <= _MAX_KNOWN_BYTES:
        _remember(_known_inputs, content, item)
    return item


def _read_output(content: bytes) -> _Output:
    message = _parse_output(content)
    item = _Output(message.name, message.parameters)
    if len(content) <= _MAX_KNOWN_BYTES:
        _remember(_known_outputs, content, item)
    return item


def _make_input(message: Any) -> _Input:
    contents = message.contents if message.HasField("contents") else None
    region = None
    if "shared_memory_region" in message.parameters:
        region = message.parameters["shared_memory_region"].string_param
    dtype = dtypes.BY_NAME.get(message.datatype, _INVALID)
    return _Input(message.name, dtype, tuple(message.shape), contents, region)


def build_request(
    form: InferForm, raw: Sequence[Buffer], spec: ModelSpec, sink: ResponseSink
) -> BuiltRequest:
    """Make a request for the engine, with the raw tensors themselves, never copies.

    Args:
        form: The parts of the message.
        raw: Its raw tensors.
        spec: The model that it is for.
        sink: Where its responses go.

    Raises:
        ServerError: The request is malformed; the text is Triton's.
    """
    request = InferRequest(spec.name, {}, sink, form.model_version, form.id)
    wants_empty_final = False
    if form.parameters:
        wants_empty_final = read_parameters(form.parameters, request)
    _add_inputs(form, raw, request)
    class_counts = None
    if form.outputs:
        request.outputs = tuple(output.name for output in form.outputs)
        class_counts = {
            output.name: class_count(output.parameters)
            for output in form.outputs
            if output.parameters
        }
    return BuiltRequest(request, class_counts, wants_empty_final)


def _add_inputs(form: InferForm, raw: Sequence[Buffer], request: InferRequest) -> None:
    inputs = request.inputs
    for name, dtype, shape, contents, region in form.inputs:
        if name in inputs:
            raise InvalidArgumentError(
                f"[request id: {request.id or '<id_unknown>'}] "
                f"input '{name}' already exists in request"
            )
        index = len(inputs)
        if contents is None and region is None and index < len(raw):
            inputs[name] = InferTensor(name, dtype, shape, raw[index])
            continue
        if region is not None:
            raise unknown_region(region)
        model_name = request.model_name
        if contents is None:
            raise InvalidArgumentError(
                f"unable to find data for input tensor '{name}' for model '{model_name}' "
                "in request."
            )
        if raw:
            raise InvalidArgumentError(
                "contents field must not be specified when using raw_input_contents for "
                f"'{name}' for model '{model_name}'"
            )
        data = tensor_from_contents(contents, dtype, name, model_name)
        inputs[name] = InferTensor(name, dtype, shape, data)
