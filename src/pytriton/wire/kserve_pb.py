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

from pytriton.engine.model_spec import ModelSpec
from pytriton.errors import InternalError, InvalidArgumentError
from pytriton.messages import InferRequest, InferTensor
from pytriton.protos import service_pb2
from pytriton.wire.kserve_pb_form import (
    MAX_FIELDS,
    MAX_KNOWN_BYTES,
    InferForm,
    Input,
    Output,
    known_forms,
    known_inputs,
    known_outputs,
    make_input,
    read_input,
    read_output,
    remember,
)
from pytriton.wire.kserve_pb_large import check_counts, read_large
from pytriton.wire.kserve_pb_parameters import class_count, read_parameters
from pytriton.wire.output_format import unknown_region
from pytriton.wire.protobuf_fields import FieldError
from pytriton.wire.tensor_contents import tensor_from_contents

if TYPE_CHECKING:
    from pytriton.dtypes import Buffer

_Request = service_pb2.ModelInferRequest

# The tags of the message's fields: each has a length and then so many bytes.
_MODEL_NAME, _MODEL_VERSION, _ID, _PARAMETERS, _INPUTS, _OUTPUTS, _RAW = (
    number << 3 | 2 for number in range(1, 8)
)
# From this size on a message's tensors are views of it; in a smaller one, copies cost less.
_VIEW_BYTES = 16 << 10
_MAX_START_BYTES = 4096  # in which the first raw tensor has to begin for `read_start`
# A larger one that is unusual is not read by protobuf as a whole, and neither are its parts that
# are larger than that: what they hold could take it seconds.
_WHOLE_BYTES = 64 << 10
_MAX_PART_BYTES = 16 << 10


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
        InvalidArgumentError: It has more parts than anybody needs, or very large ones.
    """
    if len(message) >= _VIEW_BYTES:
        message = memoryview(message)
    try:
        if isinstance(message, bytes):
            # What precedes the first ":", the tag of raw tensors, is known if it came before.
            end = message.find(_RAW)
            form = known_forms.get(message[:end])
            if form is not None and (raw := _cut_raw(message, end)) is not None:
                return form, raw
        cut = _cut(message)
        if cut is not None:
            return cut
        if len(message) > _WHOLE_BYTES:
            return read_large(memoryview(message))
        return _read_whole(_Request.FromString(bytes(message)))
    except (DecodeError, FieldError, UnicodeDecodeError):
        raise InternalError("Unable to parse request") from None


def _cut(message: Buffer) -> tuple[InferForm, Sequence[Buffer]] | None:  # noqa: C901  one pass
    """The parts of a message as all writers lay it out; None where it has anything unusual."""
    end = len(message)
    inputs: list[Input] = []
    outputs: list[Output] = []
    texts = {_MODEL_NAME: "", _MODEL_VERSION: "", _ID: ""}
    parameters: list[Buffer] = []
    at = 0
    for _ in range(MAX_FIELDS):
        if at >= end - 1 or (tag := message[at]) == _RAW:
            break
        begin = at
        size, start = _length(message, at + 1)
        if size > _MAX_PART_BYTES:
            return None
        at = start + size
        part = bytes(message[start:at])
        if tag == _INPUTS:
            inputs.append(known_inputs.get(part) or read_input(part))
        elif tag == _OUTPUTS:
            outputs.append(known_outputs.get(part) or read_output(part))
        elif tag in texts:
            texts[tag] = str(part, "utf-8")
        elif tag == _PARAMETERS:
            parameters.append(message[begin:at])
        else:
            return None
    raw = _cut_raw(message, at)
    if raw is None:
        return None
    form = InferForm(texts[_MODEL_NAME], texts[_MODEL_VERSION], texts[_ID], None, inputs, outputs)
    if parameters:
        form.parameters = _Request.FromString(b"".join(parameters)).parameters
    elif not form.id and at <= MAX_KNOWN_BYTES:
        remember(known_forms, bytes(message[:at]), form)
    return form, raw


def _cut_raw(message: Buffer, at: int) -> list[Buffer] | None:
    """The raw tensors, which are the rest of a message; None where it is something else."""
    raw: list[Buffer] = []
    end = len(message)
    for _ in range(MAX_FIELDS):
        if at >= end - 1 or message[at] != _RAW:
            break
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
    check_counts(message)
    form = InferForm(
        message.model_name,
        message.model_version,
        message.id,
        message.parameters,
        [make_input(item) for item in message.inputs],
        [Output(item.name, item.parameters) for item in message.outputs],
    )
    return form, message.raw_input_contents


def build_request(form: InferForm, raw: Sequence[Buffer], spec: ModelSpec) -> BuiltRequest:
    """Make a request for the engine, with the raw tensors themselves, never copies.

    Args:
        form: The parts of the message.
        raw: Its raw tensors.
        spec: The model that it is for.

    Raises:
        ServerError: The request is malformed; the text is Triton's.
    """
    request = InferRequest(spec.name, {}, form.model_version, form.id)
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
