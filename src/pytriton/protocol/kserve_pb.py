# SPDX-License-Identifier: Apache-2.0
"""The infer request of the KServe protocol over gRPC: a ModelInferRequest message.

The top level is split by hand, so that raw tensors are views of the received message. The small
parts are parsed by protobuf and cached, because clients often repeat them. A request with two small
inputs takes 3 us; parsing the whole message with protobuf takes 8 us.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from google.protobuf.message import DecodeError

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.base.messages import InferRequest, InferTensor
from pytriton.base.model_spec import ModelSpec
from pytriton.base.protos import service_pb2
from pytriton.protocol.kserve_pb_large import check_counts, read_large
from pytriton.protocol.kserve_pb_parameters import class_count, read_parameters
from pytriton.protocol.kserve_pb_parsed import (
    MAX_CACHED_BYTES,
    MAX_FIELDS,
    ParsedMessage,
    PbInput,
    PbOutput,
    PbParameter,
    add_to_cache,
    cached_inputs,
    cached_messages,
    cached_outputs,
    cached_parameters,
    make_input,
    make_parameters,
    read_input,
    read_output,
    read_parameter,
)
from pytriton.protocol.protobuf_fields import FieldError
from pytriton.protocol.shared_memory import RegionPlace, place_from_message
from pytriton.protocol.tensor_contents import tensor_from_contents

if TYPE_CHECKING:
    from pytriton.base.dtypes import Buffer

_Request = service_pb2.ModelInferRequest

# The tags of the message's fields, which are all length-delimited.
_MODEL_NAME, _MODEL_VERSION, _ID, _PARAMETERS, _INPUTS, _OUTPUTS, _RAW = (
    number << 3 | 2 for number in range(1, 8)
)
# The tensors of messages from this size on are views; in smaller messages, copies are cheaper.
_VIEW_BYTES = 16 << 10
_MAX_START_BYTES = 4096  # `read_start` looks for the first raw tensor in this many bytes
# Larger messages with an unusual layout are not parsed by protobuf as a whole, and larger parts are
# not parsed by protobuf at all, because that could take seconds.
_WHOLE_BYTES = 64 << 10
_MAX_PART_BYTES = 16 << 10


class BuiltRequest(msgspec.Struct, gc=False):
    """A request for the engine, and options for its responses."""

    request: InferRequest
    class_counts: dict[str, int] | None = None  # by output, for those that are to be classified
    places: dict[str, RegionPlace] | None = None  # by output, for those in shared memory
    wants_empty_final: bool = False


class MessageStart(NamedTuple):
    """Facts that the beginning of a message shows."""

    model_name: str
    model_version: str
    raw_offset: int  # where the bytes of the first raw tensor begin


def read_start(start: Buffer) -> MessageStart | None:
    """Read the beginning of an incomplete message; returns None if no raw tensor begins in it.

    The result is a guess: only `parse_message` checks whether the message is valid.
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


def parse_message(message: Buffer) -> tuple[ParsedMessage, Sequence[Buffer]]:
    """Parse a request message; returns its parts and its raw tensors.

    Raises:
        InternalError: The message is not a ModelInferRequest.
        InvalidArgumentError: It has too many parts, or too large ones.
    """
    if len(message) >= _VIEW_BYTES:
        message = memoryview(message)
    try:
        if isinstance(message, bytes):
            # The bytes before the first ":", the tag of raw tensors, may be in the cache.
            end = message.find(_RAW)
            parsed = cached_messages.get(message[:end])
            if parsed is not None and (raw := _split_raw(message, end)) is not None:
                return parsed, raw
        cut = _split(message)
        if cut is not None:
            return cut
        if len(message) > _WHOLE_BYTES:
            return read_large(memoryview(message))
        return _read_whole(_Request.FromString(bytes(message)))
    except (DecodeError, FieldError, UnicodeDecodeError):
        raise InternalError("Unable to parse request") from None


def _split(message: Buffer) -> tuple[ParsedMessage, Sequence[Buffer]] | None:  # noqa: C901  one pass
    """Parse a message with the usual layout; returns None if it has another one."""
    end = len(message)
    inputs: list[PbInput] = []
    outputs: list[PbOutput] = []
    texts = {_MODEL_NAME: "", _MODEL_VERSION: "", _ID: ""}
    parameters: dict[str, PbParameter] = {}
    at = 0
    for _ in range(MAX_FIELDS):
        if at >= end - 1 or (tag := message[at]) == _RAW:
            break
        size = message[at + 1]
        start = at + 2
        if size > 127:
            size, start = _length(message, at + 1)
            if size > _MAX_PART_BYTES:
                return None
        at = start + size
        part = bytes(message[start:at])
        if tag == _INPUTS:
            inputs.append(cached_inputs.get(part) or read_input(part))
        elif tag == _OUTPUTS:
            outputs.append(cached_outputs.get(part) or read_output(part))
        elif tag in texts:
            texts[tag] = str(part, "utf-8")
        elif tag == _PARAMETERS:
            name, parameter = cached_parameters.get(part) or read_parameter(part)
            parameters[name] = parameter
        else:
            return None
    raw = _split_raw(message, at)
    if raw is None:
        return None
    parsed = ParsedMessage(
        texts[_MODEL_NAME], texts[_MODEL_VERSION], texts[_ID], None, inputs, outputs
    )
    if parameters:
        parsed.parameters = parameters
    elif not parsed.id and at <= MAX_CACHED_BYTES:
        add_to_cache(cached_messages, bytes(message[:at]), parsed)
    return parsed, raw


def _split_raw(message: Buffer, at: int) -> list[Buffer] | None:
    """Returns the raw tensors from `at` on; None if anything else follows."""
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
    """Returns the length of a field and where it ends; for an invalid one, that of the message."""
    size = shift = 0
    for byte in message[at : at + 5]:
        size |= (byte & 127) << shift
        shift += 7
        at += 1
        if byte < 128:
            return size, at
    return len(message), at


def _read_whole(message: Any) -> tuple[ParsedMessage, Sequence[Buffer]]:
    check_counts(message)
    parsed = ParsedMessage(
        message.model_name,
        message.model_version,
        message.id,
        make_parameters(message.parameters),
        [make_input(item) for item in message.inputs],
        [PbOutput(item.name, item.parameters) for item in message.outputs],
    )
    return parsed, message.raw_input_contents


def build_request(parsed: ParsedMessage, raw: Sequence[Buffer], spec: ModelSpec) -> BuiltRequest:
    """Build a request for the engine; raw tensors are not copied.

    Args:
        parsed: The message.
        raw: Its raw tensors.
        spec: The specification of the model.

    Raises:
        ServerError: The request is malformed; the text is Triton's.
    """
    request = InferRequest(spec.name, {}, parsed.model_version, parsed.id)
    wants_empty_final = False
    if parsed.parameters:
        wants_empty_final = read_parameters(parsed.parameters, request)
    _add_inputs(parsed, raw, request)
    built = BuiltRequest(request, wants_empty_final=wants_empty_final)
    if parsed.outputs:
        request.outputs = tuple(output.name for output in parsed.outputs)
        built.class_counts = {
            output.name: class_count(output.parameters)
            for output in parsed.outputs
            if output.parameters
        }
        if built.class_counts:
            _add_places(parsed.outputs, built)
    return built


def _add_places(outputs: Sequence[PbOutput], built: BuiltRequest) -> None:
    """Add the places of outputs that go to shared memory, each of which has parameters."""
    places = {}
    for output in outputs:
        place = place_from_message(output.parameters, output.name)
        if place is not None:
            places[output.name] = place
    if places:
        built.places = places
        built.request.uses_regions = True


def _add_inputs(parsed: ParsedMessage, raw: Sequence[Buffer], request: InferRequest) -> None:
    inputs = request.inputs
    unread = 0  # the index of the next raw tensor
    for name, dtype, shape, contents, parameters in parsed.inputs:
        if name in inputs:
            raise InvalidArgumentError(
                f"[request id: {request.id or '<id_unknown>'}] "
                f"input '{name}' already exists in request"
            )
        place = None if parameters is None else place_from_message(parameters, name)
        if contents is None and place is None and unread < len(raw):
            inputs[name] = InferTensor(name, dtype, shape, raw[unread])
            unread += 1
            continue
        model_name = request.model_name
        if place is not None:
            if contents is not None:
                raise InvalidArgumentError(
                    "unexpected 'content' provided when using shared memory for input tensor "
                    f"'{name}' for model '{model_name}'"
                )
            inputs[name] = InferTensor(name, dtype, shape, place)
            request.uses_regions = True
            continue
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
