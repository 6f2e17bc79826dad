# SPDX-License-Identifier: Apache-2.0
"""Encodes the requests of a plan, checks the plan, and reads the outputs of answers. No I/O.

The processes of the generator make whole requests of the templates in a recipe.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from numpy.typing import NDArray

from pytriton.base import dtypes
from pytriton.base.protos import service_pb2
from pytriton.client.http_message import request_head
from pytriton.client.kserve.address import Address, Tls
from pytriton.client.kserve.messages import (
    ASKS_FOR_FINAL,
    SERVICE,
    infer_message,
    outputs_of_message,
)
from pytriton.client.kserve.records import (
    HEADER_LENGTH,
    NamedArray,
    PlainTensor,
    input_entry,
    model_path,
    outputs_of_body,
)
from pytriton.protocol.http2 import encode_header_block
from pytriton.tools.perf.errors import GeneratorError
from pytriton.tools.perf.load.lane import Choice
from pytriton.tools.perf.load.plan import (
    Compression,
    InputSet,
    LoadPlan,
    LoadProtocol,
    TensorFormat,
    TensorMemory,
    parse_load_address,
)
from pytriton.tools.perf.load.recipe import Recipe, RequestTemplate

PREFIX = struct.Struct(">BI")  # whether the message is compressed, and its length
_ID_TAG = b"\x1a\x08"  # field 3 of ModelInferRequest, eight bytes


def plain_tensor(name: str, array: NDArray[Any], datatype: str = "") -> PlainTensor:
    """The tensor of an array.

    Raises:
        GeneratorError: The protocol has no datatype for the array.
    """
    if not datatype:
        found = dtypes.from_numpy(array.dtype)
        if found is None:
            known = ", ".join(dtypes.BY_NAME)
            raise GeneratorError(
                f"tensor '{name}': expected one of {known}, got dtype {array.dtype}"
            )
        datatype = found.name
    return PlainTensor.of(NamedArray(name, datatype, array))


def tensors_of(inputs: InputSet) -> list[PlainTensor]:
    """The tensors of a request."""
    return [
        plain_tensor(name, array, inputs.datatypes.get(name, ""))
        for name, array in inputs.tensors.items()
    ]


def json_values(tensor: PlainTensor) -> list[Any]:
    """The elements as JSON has them, in one flat list.

    Raises:
        GeneratorError: A string is not UTF-8, which JSON cannot carry.
    """
    try:
        return tensor.json_elements()
    except UnicodeDecodeError as error:
        raise GeneratorError(
            f"tensor '{tensor.name}': expected text in UTF-8, which JSON needs, "
            f"got {error.object[:40]!r}; use the binary tensor format"
        ) from error


def http_head(plan: LoadPlan, address: Address) -> bytes:
    """The head of all requests of a plan, without their lengths and the empty line."""
    route = "generate_stream" if plan.streaming else "infer"
    target = f"{address.path}{model_path(plan.model, plan.version)}/{route}"
    kind = "octet-stream" if has_binary(plan) else "json"
    headers = {"Content-Type": f"application/{kind}"}
    if plan.compression.value != "none":
        headers["Content-Encoding"] = plan.compression.value
    headers |= dict(plan.headers)
    try:
        head = request_head("POST", target, address.host_and_port, headers)
    except ValueError as error:
        raise GeneratorError(str(error)) from error
    return head.removesuffix(b"\r\n")


def has_binary(plan: LoadPlan) -> bool:
    """Whether requests have tensors after their JSON."""
    is_inline = plan.shared_memory is TensorMemory.NONE
    return plan.input_format is TensorFormat.BINARY and is_inline and not plan.streaming


def http_template(plan: LoadPlan, inputs: InputSet, regions: Mapping[str, str]) -> RequestTemplate:
    """The template of a request; `regions` of shared memory are by `i:` or `o:` and the name."""
    tensors = tensors_of(inputs)
    parameters: dict[str, Any] = dict(plan.parameters)
    if plan.streaming:
        return _generate_template(tensors, parameters)
    members: dict[str, Any] = {"inputs": [_input(plan, tensor, regions) for tensor in tensors]}
    if outputs := _outputs(plan, regions):
        members["outputs"] = outputs
    elif plan.output_format is TensorFormat.BINARY:
        parameters["binary_data_output"] = True
    binary = b"".join(tensor.data for tensor in tensors) if has_binary(plan) else b""
    if plan.sequences is None:
        document = members | ({"parameters": parameters} if parameters else {})
        return RequestTemplate(orjson.dumps(document), b"", binary)
    before = orjson.dumps(members)[:-1] + b',"parameters":{'
    after = b"," + orjson.dumps(parameters)[1:] + b"}" if parameters else b"}}"
    return RequestTemplate(before, after, binary)


def _generate_template(
    tensors: Sequence[PlainTensor], parameters: Mapping[str, Any]
) -> RequestTemplate:
    """The generate extension has flat members: tensors, and everything else is a parameter."""
    members: dict[str, Any] = dict(parameters)
    for tensor in tensors:
        values = json_values(tensor)
        members[tensor.name] = values[0] if len(values) == 1 else values
    return RequestTemplate(orjson.dumps(members)[:-1], b"}")


def _input(plan: LoadPlan, tensor: PlainTensor, regions: Mapping[str, str]) -> dict[str, Any]:
    if plan.shared_memory is not TensorMemory.NONE:
        region = {
            "shared_memory_region": regions[f"i:{tensor.name}"],
            "shared_memory_byte_size": len(tensor.data),
        }
        return {**input_entry(tensor), "parameters": region}
    is_binary = plan.input_format is TensorFormat.BINARY
    return input_entry(tensor, None if is_binary else json_values(tensor))


def _outputs(plan: LoadPlan, regions: Mapping[str, str]) -> list[dict[str, Any]]:
    outputs: list[dict[str, Any]] = []
    for name in plan.outputs:
        parameters: dict[str, Any] = {}
        if plan.shared_memory is not TensorMemory.NONE:
            parameters["shared_memory_region"] = regions[f"o:{name}"]
            parameters["shared_memory_byte_size"] = plan.output_region_bytes
        elif plan.output_format is TensorFormat.BINARY:
            parameters["binary_data"] = True
        outputs.append({"name": name} | ({"parameters": parameters} if parameters else {}))
    return outputs


class HttpRequests:
    """Makes the bytes of whole requests; those without a sequence are made once."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._templates = [template for stream in recipe.streams for template in stream]
        self._separator = b"," if recipe.is_streaming else b""
        self._whole: list[bytes] = []
        if recipe.sequences is None:
            self._whole = [self._render(template, b"") for template in self._templates]

    def whole(self, choice: Choice) -> bytes:
        """The bytes of a request."""
        if self._whole:
            return self._whole[choice.input_index]
        members = b'%s"sequence_id":%d,"sequence_start":%s,"sequence_end":%s' % (
            self._separator,
            choice.sequence_id,
            b"true" if choice.is_start else b"false",
            b"true" if choice.is_end else b"false",
        )
        return self._render(self._templates[choice.input_index], members)

    def _render(self, template: RequestTemplate, members: bytes) -> bytes:
        text = template.before + members + template.after
        body = compressed(text + template.binary, self._recipe.encoding)
        lengths = b"Content-Length: %d\r\n\r\n" % len(body)
        if self._recipe.has_binary:
            lengths = b"%s: %d\r\n%s" % (HEADER_LENGTH.encode(), len(text), lengths)
        return (template.head or self._recipe.head) + lengths + body


def compressed(data: bytes, encoding: str) -> bytes:
    """The data, compressed with gzip or deflate (which is zlib's format), or as it is."""
    if encoding == "gzip":
        return gzip.compress(data)
    return zlib.compress(data) if encoding == "deflate" else data


def grpc_header_block(plan: LoadPlan, address: Address) -> bytes:
    """The headers of all calls of a plan."""
    method = "ModelStreamInfer" if plan.streaming else "ModelInfer"
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"https" if address.uses_tls else b"http"),
        (b":path", f"{SERVICE}/{method}".encode()),
        (b":authority", address.host_and_port.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ]
    if plan.compression.value != "none":
        fields.append((b"grpc-encoding", plan.compression.value.encode()))
    for name, value in plan.headers:
        if not name or name.startswith(":") or not name.isascii() or "\n" in value:
            raise GeneratorError(f"expected a header `name:value`, got {name!r}: {value!r}")
        fields.append((name.lower().encode(), value.encode()))
    return encode_header_block(fields)


def grpc_template(plan: LoadPlan, inputs: InputSet, regions: Mapping[str, str]) -> RequestTemplate:
    """The template of a request; `regions` as for HTTP."""
    tensors = tensors_of(inputs)
    request = infer_message(plan.model, plan.version, plan.parameters, tensors, plan.outputs)
    if plan.decoupled:
        request.parameters[ASKS_FOR_FINAL].bool_param = True
    if plan.shared_memory is not TensorMemory.NONE:
        del request.raw_input_contents[:]
        for added, tensor in zip(request.inputs, tensors, strict=True):
            _name_region(added, regions[f"i:{tensor.name}"], len(tensor.data))
        for output in request.outputs:
            _name_region(output, regions[f"o:{output.name}"], plan.output_region_bytes)
    return RequestTemplate(request.SerializeToString())


def _name_region(tensor: Any, region: str, size: int) -> None:
    tensor.parameters["shared_memory_region"].string_param = region
    tensor.parameters["shared_memory_byte_size"].int64_param = size


class GrpcRequests:
    """Makes messages with their prefixes, ready for DATA frames."""

    def __init__(self, recipe: Recipe) -> None:
        self._encoding = recipe.encoding
        self._messages = [template.before for stream in recipe.streams for template in stream]
        self._whole: list[bytes] = []
        if recipe.sequences is None:
            self._whole = [self._framed(message) for message in self._messages]

    def whole(self, choice: Choice) -> bytes:
        """The framed message of a call that has one request."""
        if self._whole:
            return self._whole[choice.input_index]
        return self._framed(self._messages[choice.input_index] + sequence_fields(choice))

    def with_id(self, choice: Choice, number: int) -> bytes:
        """The framed message of a request on a stream, whose id is the number in eight digits."""
        message = b"%s%s%08x" % (self._messages[choice.input_index], _ID_TAG, number)
        if choice.sequence_id:
            message += sequence_fields(choice)
        return self._framed(message)

    def _framed(self, message: bytes) -> bytes:
        if not self._encoding:
            return PREFIX.pack(0, len(message)) + message
        small = compressed(message, self._encoding)
        return PREFIX.pack(1, len(small)) + small


def sequence_fields(choice: Choice) -> bytes:
    """The parameters of a sequence, as fields that can follow any ModelInferRequest."""
    request = service_pb2.ModelInferRequest()
    request.parameters["sequence_id"].int64_param = choice.sequence_id
    request.parameters["sequence_start"].bool_param = choice.is_start
    request.parameters["sequence_end"].bool_param = choice.is_end
    return bytes(request.SerializeToString())


def address_of(plan: LoadPlan) -> Address:
    """The address in the URL of a plan; GeneratorError if it is malformed."""
    return parse_load_address(plan.url, plan.protocol.value, plan.tls)


def check_plan(plan: LoadPlan) -> None:
    """Refuse what cannot be done.

    Raises:
        GeneratorError: it says what was expected.
    """
    problem = ""
    if not plan.inputs or not all(plan.inputs):
        problem = "expected at least one input set in each stream of input data, got none"
    elif plan.decoupled and not plan.streaming:
        problem = "a decoupled model needs streaming"
    elif plan.shared_memory is not TensorMemory.NONE and _is_http_stream(plan):
        problem = "streams over HTTP have their tensors in JSON; shared memory needs gRPC"
    sequences = plan.sequences
    if sequences is not None and not problem:
        if sequences.at_once < 1 or (sequences.length is not None and sequences.length < 1):
            problem = "expected sequences of 1 request or more, and at least one at once"
        elif sequences.first_id < 1 or (sequences.last_id or sequences.first_id) < 1:
            problem = "expected ids of sequences of 1 or more"
        elif sequences.last_id is not None and sequences.last_id < sequences.first_id:
            problem = (
                f"expected ids of sequences from {sequences.first_id} to a larger one, "
                f"got {sequences.last_id}"
            )
    if problem:
        raise GeneratorError(problem)


def _is_http_stream(plan: LoadPlan) -> bool:
    return plan.protocol is LoadProtocol.HTTP and plan.streaming


def recipe_of(plan: LoadPlan, address: Address, regions: list[dict[str, str]]) -> Recipe:
    """The recipe of a plan that was checked; `regions` of each input set with shared memory.

    Raises:
        GeneratorError: A tensor or a header cannot be sent.
    """
    is_grpc = plan.protocol is LoadProtocol.GRPC
    make = grpc_template if is_grpc else http_template
    streams = []
    number = 0
    for stream in plan.inputs:
        templates = []
        for inputs in stream:
            templates.append(make(plan, inputs, regions[number] if regions else {}))
            number += 1
        streams.append(templates)
    head = grpc_header_block(plan, address) if is_grpc else http_head(plan, address)
    return Recipe(
        is_grpc=is_grpc,
        host=address.host,
        port=address.port,
        head=head,
        streams=streams,
        is_streaming=plan.streaming,
        is_decoupled=plan.decoupled,
        has_binary=not is_grpc and has_binary(plan),
        encoding="" if plan.compression is Compression.NONE else plan.compression.value,
        expected=[_expected(inputs) for stream in plan.inputs for inputs in stream],
        sequences=plan.sequences,
        tls=plan.tls or (Tls() if address.uses_tls else None),
        keeps_outputs=plan.keep_outputs,
    )


def _expected(inputs: InputSet) -> list[PlainTensor] | None:
    if inputs.expected is None:
        return None
    return [plain_tensor(name, array) for name, array in inputs.expected.items()]


class AnswerError(ValueError):
    """An answer does not have what an inference answer has."""


def outputs_of(
    answer: bytes, json_bytes: int, *, is_grpc: bool, is_streaming: bool
) -> list[PlainTensor]:
    """The outputs of one response.

    Raises:
        OutputError: it is not the answer to an inference.
    """
    try:
        if is_grpc:
            message = answer if is_streaming else answer[PREFIX.size :]
            return outputs_of_message(service_pb2.ModelInferResponse.FromString(message))
        if is_streaming:
            return _outputs_of_event(answer)
        head_length = None if json_bytes < 0 else json_bytes
        return outputs_of_body(orjson.loads(answer[:head_length]), answer, head_length)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise AnswerError(f"expected the answer to an inference, got {answer[:80]!r}") from error


def _outputs_of_event(event: bytes) -> list[PlainTensor]:
    members = orjson.loads(event)
    return [
        PlainTensor(name, "BYTES", (1,), dtypes.encode_bytes([orjson.dumps(value)]))
        for name, value in members.items()
        if name not in ("model_name", "model_version", "id")
    ]


def differs(
    recipe: Recipe, expected: list[PlainTensor], answers: list[bytes], json_bytes: list[int]
) -> str:
    """What is wrong with the responses of a request; empty if they are as expected."""
    for answer, size in zip(answers, json_bytes, strict=True):
        try:
            outputs = outputs_of(
                answer, size, is_grpc=recipe.is_grpc, is_streaming=recipe.is_streaming
            )
        except AnswerError as error:
            return str(error)
        found = {output.name: output for output in outputs}
        for right in expected:
            output = found.get(right.name)
            if output is None:
                return f"expected output '{right.name}', got {', '.join(found) or 'none'}"
            if output.data != right.data:
                return f"output '{right.name}' differs from the expected data"
    return ""
