# SPDX-License-Identifier: Apache-2.0
"""Requests of gRPC as bytes: templates of a plan, and whole messages made of them."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from pytriton.base.protos import service_pb2
from pytriton.protocol.http2 import encode_header_block
from pytriton.protocol.kserve_pb import set_parameter
from pytriton.tools.perf.errors import GeneratorError
from pytriton.tools.perf.load.choices import Choice
from pytriton.tools.perf.load.http_requests import compressed
from pytriton.tools.perf.load.plan import InputSet, LoadPlan, TensorMemory
from pytriton.tools.perf.load.recipe import Recipe, RequestTemplate
from pytriton.tools.perf.load.tensors import plain_tensor

SERVICE = "/inference.GRPCInferenceService"
_PREFIX = struct.Struct(">BI")  # whether the message is compressed, and its length
_ID_TAG = b"\x1a\x08"  # field 3 of ModelInferRequest, eight bytes
FINAL_RESPONSE = "triton_enable_empty_final_response"


def grpc_header_block(plan: LoadPlan, authority: str, *, is_tls: bool) -> bytes:
    """The headers of all calls of a plan."""
    method = "ModelStreamInfer" if plan.streaming else "ModelInfer"
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"https" if is_tls else b"http"),
        (b":path", f"{SERVICE}/{method}".encode()),
        (b":authority", authority.encode()),
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
    request = service_pb2.ModelInferRequest(model_name=plan.model, model_version=plan.version)
    for name, value in plan.parameters.items():
        set_parameter(request.parameters[name], value)
    if plan.decoupled:
        request.parameters[FINAL_RESPONSE].bool_param = True
    for name, array in inputs.tensors.items():
        tensor = plain_tensor(name, array, inputs.datatypes.get(name, ""))
        added = request.inputs.add(name=name, datatype=tensor.datatype, shape=tensor.shape)
        if plan.shared_memory is TensorMemory.NONE:
            request.raw_input_contents.append(tensor.data)
        else:
            added.parameters["shared_memory_region"].string_param = regions[f"i:{name}"]
            added.parameters["shared_memory_byte_size"].int64_param = len(tensor.data)
    for name in plan.outputs:
        output = request.outputs.add(name=name)
        if plan.shared_memory is not TensorMemory.NONE:
            output.parameters["shared_memory_region"].string_param = regions[f"o:{name}"]
            output.parameters["shared_memory_byte_size"].int64_param = plan.output_region_bytes
    return RequestTemplate(request.SerializeToString())


class GrpcRequests:
    """Makes messages with their prefixes, ready for DATA frames."""

    def __init__(self, recipe: Recipe) -> None:
        self._encoding = recipe.encoding
        self._is_streaming = recipe.is_streaming
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
            return _PREFIX.pack(0, len(message)) + message
        small = compressed(message, self._encoding)
        return _PREFIX.pack(1, len(small)) + small


def sequence_fields(choice: Choice) -> bytes:
    """The parameters of a sequence, as fields that can follow any ModelInferRequest."""
    request = service_pb2.ModelInferRequest()
    request.parameters["sequence_id"].int64_param = choice.sequence_id
    request.parameters["sequence_start"].bool_param = choice.is_start
    request.parameters["sequence_end"].bool_param = choice.is_end
    return bytes(request.SerializeToString())
