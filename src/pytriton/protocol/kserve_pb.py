# SPDX-License-Identifier: Apache-2.0
"""The infer request of the KServe protocol over gRPC: a ModelInferRequest message.

The top level is split by hand, so that raw tensors are views of the received message. The small
parts are parsed by protobuf and cached, because clients often repeat them. A request with two small
inputs takes 3 us; parsing the whole message with protobuf takes 8 us.

Whatever a message contains, this takes a few milliseconds at most: large messages of an unusual
layout are split into fields, which are counted before they are parsed, and typed tensors of large
messages are only located. They are parsed later, in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import msgspec
from google.protobuf.message import DecodeError

from pytriton.base import dtypes
from pytriton.base.dtypes import DataType
from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.base.messages import InferRequest, InferTensor, ParameterValue, RequestFields
from pytriton.base.model_spec import ModelSpec
from pytriton.base.protos import service_pb2
from pytriton.protocol.protobuf_fields import LENGTH, FieldError, split_fields
from pytriton.protocol.sequence import SEQUENCE_FLAGS, check_sequence_id
from pytriton.protocol.shared_memory import REGION, RegionPlace, place_from_message
from pytriton.protocol.tensor_contents import LargeContents, tensor_from_contents

if TYPE_CHECKING:
    from pytriton.base.dtypes import Buffer

_Request = service_pb2.ModelInferRequest
# The tags of the message's fields, which are all length-delimited.
_MODEL_NAME, _MODEL_VERSION, _ID, _PARAMETERS, _INPUTS, _OUTPUTS, _RAW = (
    number << 3 | LENGTH for number in range(1, 8)
)
_NAMES = {
    descriptor.number << 3 | LENGTH: descriptor.name for descriptor in _Request.DESCRIPTOR.fields
}
_parse_input = _Request.InferInputTensor.FromString
_parse_output = _Request.InferRequestedOutputTensor.FromString
_parse_parameter = _Request.ParametersEntry.FromString

MAX_FIELDS = 4096  # the limit for each of inputs, raw tensors, outputs and parameters
MAX_DIMENSIONS = 1024
_MAX_CACHED = 1024
MAX_CACHED_BYTES = 512
# The tensors of messages from this size on are views; in smaller messages, copies are cheaper.
_VIEW_BYTES = 16 << 10
_MAX_START_BYTES = 4096  # `read_start` looks for the first raw tensor in this many bytes
# Larger messages with an unusual layout are not parsed by protobuf as a whole, and larger parts are
# not parsed by protobuf at all, because that could take seconds.
_WHOLE_BYTES = 64 << 10
_MAX_PART_BYTES = 16 << 10
_CONTENTS = 5  # a field of an input
# The limit for all names, shapes and parameters of a request together.
MAX_HEAD_BYTES = 4 << 20
_INVALID = DataType(0, "<invalid>", "uint8", 1)

_EMPTY_FINAL = "triton_enable_empty_final_response"
# The parameters that the server uses itself, and their allowed types.
_KNOWN = {
    "sequence_id": ("int64_param", "string_param"),
    "sequence_start": ("bool_param",),
    "sequence_end": ("bool_param",),
    "priority": ("int64_param", "uint64_param"),
    "timeout": ("int64_param",),
}
_CUSTOM_CHOICES = frozenset({"bool_param", "int64_param", "string_param", "double_param"})


class PbInput(NamedTuple):
    """An element of `inputs`."""

    name: str
    dtype: DataType
    shape: tuple[int, ...]
    contents: Any = None  # of a typed tensor: an InferTensorContents message or LargeContents
    parameters: Any = None  # the map in the message, unless it is empty


class PbOutput(NamedTuple):
    """An element of `outputs`."""

    name: str
    parameters: Any  # the map in the message


class PbParameter(NamedTuple):
    """The value of a parameter."""

    choice: str | None  # the field of its message that is set
    value: Any


class ParsedMessage(msgspec.Struct, gc=False):
    """The parsed parts of a request message, without raw tensors."""

    model_name: str = ""
    model_version: str = ""
    id: str = ""
    parameters: Mapping[str, PbParameter] | None = None
    inputs: Sequence[PbInput] = ()
    outputs: Sequence[PbOutput] = ()


cached_messages: dict[bytes, ParsedMessage] = {}
cached_inputs: dict[bytes, PbInput] = {}
cached_outputs: dict[bytes, PbOutput] = {}
cached_parameters: dict[bytes, tuple[str, PbParameter]] = {}  # sequences repeat theirs


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
    raw_at: int  # where the first raw tensor begins, with its tag; a message may end there
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
            return MessageStart(texts[_MODEL_NAME], texts[_MODEL_VERSION], at, content)
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
            # A length in more bytes than it needs is no error: protobuf reads such a message.
            if size > _MAX_PART_BYTES or start + size > end:
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


def read_input(content: bytes) -> PbInput:
    """Parse the bytes of an element of `inputs`."""
    item = make_input(_parse_input(content))
    if item.contents is None and len(content) <= MAX_CACHED_BYTES:
        add_to_cache(cached_inputs, content, item)
    return item


def make_input(message: Any) -> PbInput:
    """Make a `PbInput` from its message.

    Raises:
        InvalidArgumentError: The shape has too many dimensions.
    """
    if len(message.shape) > MAX_DIMENSIONS:
        raise InvalidArgumentError(
            f"expected at most {MAX_DIMENSIONS} dimensions of an input, got {len(message.shape)}"
        )
    contents = message.contents if message.HasField("contents") else None
    dtype = dtypes.BY_NAME.get(message.datatype, _INVALID)
    return PbInput(message.name, dtype, tuple(message.shape), contents, message.parameters or None)


def read_output(content: bytes) -> PbOutput:
    """Parse the bytes of an element of `outputs`."""
    message = _parse_output(content)
    item = PbOutput(message.name, message.parameters)
    if len(content) <= MAX_CACHED_BYTES:
        add_to_cache(cached_outputs, content, item)
    return item


def read_parameter(content: bytes) -> tuple[str, PbParameter]:
    """Parse the bytes of an entry of `parameters`; returns its name and its value."""
    entry = _parse_parameter(content)
    item = (entry.key, _make_parameter(entry.value))
    if len(content) <= MAX_CACHED_BYTES:
        add_to_cache(cached_parameters, content, item)
    return item


def make_parameters(message: Mapping[str, Any]) -> dict[str, PbParameter]:
    """Make the parameters of a request from the map in its message."""
    return {name: _make_parameter(parameter) for name, parameter in message.items()}


def _make_parameter(message: Any) -> PbParameter:
    choice = message.WhichOneof("parameter_choice")
    return PbParameter(choice, getattr(message, choice) if choice else None)


def add_to_cache(known: dict[bytes, Any], content: bytes, value: Any) -> None:
    """Add the parsed value of some bytes to a cache, which is emptied first if it is full."""
    if len(known) >= _MAX_CACHED:
        known.clear()
    known[content] = value


def read_large(message: memoryview) -> tuple[ParsedMessage, Sequence[Buffer]]:
    """Parse a message; returns its parts and its raw tensors.

    Raises:
        InvalidArgumentError: The message has too many parts, or too large ones.
        FieldError: It is not a valid message.
    """
    parts: dict[int, list[memoryview]] = {tag: [] for tag in _NAMES}
    parameters: list[memoryview] = []
    others = 0
    for number, wire_type, begin, start, stop in split_fields(message):
        tag = number << 3 | wire_type
        found = parts.get(tag)
        if found is None:
            others += 1
            _check_count("unknown fields", others)
            continue
        found.append(message[start:stop])
        _check_count(_NAMES[tag], len(found))
        if tag == _PARAMETERS:
            parameters.append(message[begin:stop])
    head = _HeadBudget()
    parsed = ParsedMessage(
        head.text(parts[_MODEL_NAME]),
        head.text(parts[_MODEL_VERSION]),
        head.text(parts[_ID]),
    )
    parsed.inputs = [_read_input(part, head) for part in parts[_INPUTS]]
    parsed.outputs = [read_output(head.take(part)) for part in parts[_OUTPUTS]]
    if parameters:
        content = b"".join(head.take(part) for part in parameters)
        parsed.parameters = make_parameters(_Request.FromString(content).parameters)
    return parsed, parts[_RAW]


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


def build_request(parsed: ParsedMessage, raw: Sequence[Buffer], spec: ModelSpec) -> BuiltRequest:
    """Build a request for the engine; raw tensors are not copied.

    Raises:
        ServerError: The request is malformed; the text is Triton's.
    """
    request = InferRequest(spec.name, {}, parsed.model_version, RequestFields(parsed.id))
    wants_empty_final = False
    if parsed.parameters:
        wants_empty_final = read_parameters(parsed.parameters, request.fields)
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
                f"[request id: {request.fields.id or '<id_unknown>'}] "
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


def read_parameters(parameters: Mapping[str, PbParameter], fields: RequestFields) -> bool:
    """Read the parameters for the model and for the scheduler into `fields`.

    Returns whether the client wants a final response even if it has no tensors.

    Raises:
        ServerError: A parameter has a wrong type or a reserved name.
    """
    wants_empty_final = False
    for key, (choice, value) in parameters.items():
        known = _KNOWN.get(key)
        if known is not None:
            if choice not in known:
                _refuse_type(key, known)
            _read_known(key, choice, value, fields)
        elif key == _EMPTY_FINAL:
            if choice != "bool_param":
                _refuse_type(key, ("bool_param",))
            wants_empty_final = value
        elif key.startswith("triton_"):
            raise InvalidArgumentError(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the "
                f"following keys starting with 'triton_' are allowed: {_EMPTY_FINAL}"
            )
        elif choice in _CUSTOM_CHOICES:
            fields.parameters[key] = value
        else:
            raise InvalidArgumentError(
                f"invalid value type for '{key}' parameter, expected int64_param, bool_param, or "
                "string_param."
            )
    return wants_empty_final


def _refuse_type(key: str, expected: Sequence[str]) -> NoReturn:
    raise InvalidArgumentError(
        f"invalid value type for '{key}' parameter, expected {' or '.join(expected)}."
    )


def _read_known(key: str, choice: str | None, value: Any, fields: RequestFields) -> None:
    if key in SEQUENCE_FLAGS:
        if value:
            fields.flags |= SEQUENCE_FLAGS[key]
    elif key == "sequence_id":
        if choice == "string_param":
            fields.correlation_id = check_sequence_id(value)
        else:  # the id is unsigned but the field is not: a large id is a negative number in it
            fields.correlation_id = value % 2**64
    elif key == "priority":
        if value < 0:
            raise InvalidArgumentError("invalid value for 'priority', expected value >= 0.")
        fields.priority = value
    elif key == "timeout":
        fields.timeout_us = value


def class_count(parameters: Mapping[str, Any]) -> int:
    """Returns the number of classes that a requested output's parameters ask for; 0: the tensor.

    Raises:
        InvalidArgumentError: The number is invalid, or the output should go to shared memory.
    """
    count = 0
    if "classification" in parameters:
        parameter = parameters["classification"]
        if parameter.WhichOneof("parameter_choice") != "int64_param":
            raise InvalidArgumentError(
                "invalid value type for 'classification' parameter, expected int64_param"
            )
        count = parameter.int64_param
        if count <= 0:
            raise InvalidArgumentError(
                "invalid value for 'classification' parameter, expected >= 0"
            )
    if count and REGION in parameters:
        raise InvalidArgumentError(
            "output can't set both 'shared_memory_region' and 'classification'"
        )
    return count


def encode_parameters(parameters: Mapping[str, ParameterValue]) -> bytes:
    """Encode the `parameters` field of a response message, to be joined with other fields."""
    message = service_pb2.ModelInferResponse()
    for key, value in parameters.items():
        set_parameter(message.parameters[key], value)
    encoded: bytes = message.SerializeToString()
    return encoded


def set_parameter(parameter: Any, value: ParameterValue) -> None:
    """Set the member of an InferParameter that suits the value."""
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = value
