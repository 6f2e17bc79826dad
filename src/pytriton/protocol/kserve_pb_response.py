# SPDX-License-Identifier: Apache-2.0
"""Encodes infer responses of the KServe protocol over gRPC as lists of buffers.

Names, datatypes and shapes are often the same, so their bytes are cached. Tensors are passed by
reference and not copied into the message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING

from pytriton.base.errors import InvalidArgumentError
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.base.protos import service_pb2
from pytriton.protocol.grpc.messages import pack_prefix
from pytriton.protocol.kserve_pb import encode_parameters
from pytriton.protocol.kserve_response import classify

if TYPE_CHECKING:
    from pytriton.base.dtypes import Buffer, DataType
    from pytriton.base.messages import OutputBurst, ResponseBurst

MAX_MESSAGE_BYTES = 2**31 - 1

_Response = service_pb2.ModelInferResponse
_StreamResponse = service_pb2.ModelStreamInferResponse
_MAX_CACHED = 1024
_ID_TAG = b"\x1a"
_RAW_TAG = b"\x32"
_INFER_RESPONSE_TAG = b"\x12"

_FINAL_FLAGS = {
    is_final: encode_parameters({"triton_final_response": is_final}) for is_final in (False, True)
}

_model_heads: dict[tuple[str, str], bytes] = {}
_output_heads: dict[tuple[str, DataType, tuple[int, ...]], bytes] = {}


def encode_infer_response(
    response: InferResponse,
    class_counts: Mapping[str, int] | None = None,
    *,
    is_batched: bool = True,
    labels: Mapping[str, Sequence[str]] | None = None,
) -> list[Buffer]:
    """Returns the buffers of a ModelInferResponse in order; tensors are not copied.

    `class_counts` has the number of classes to return instead of the tensor, by output.

    Raises:
        ServerError: An output cannot be classified.
    """
    parts: list[Buffer] = [_model_head(response.model_name, response.model_version)]
    if response.id:
        parts += _field(_ID_TAG, response.id.encode())
    if response.parameters:
        parts.append(encode_parameters(response.parameters))
    raw: list[Buffer] = []
    for tensor in response.outputs:
        if class_counts and class_counts.get(tensor.name):
            names = labels.get(tensor.name, ()) if labels else ()
            count = class_counts[tensor.name]
            tensor = classify(tensor, count, names, batched=is_batched)  # noqa: PLW2901
        name, dtype, shape, data = tensor.name, tensor.dtype, tensor.shape, tensor.data
        parts.append(_output_heads.get((name, dtype, shape)) or _output_head(tensor))
        size = len(data)
        raw.append(_SMALL_RAW_HEADS[size] if size < 128 else _raw_head(size))
        raw.append(data)
    return parts + raw


def encode_stream_response(parts: list[Buffer], *, is_final: bool) -> list[Buffer]:
    """Returns a ModelStreamInferResponse with the parts of a response and its final flag."""
    flag = _FINAL_FLAGS[is_final]
    size = len(flag) + sum(map(len, parts))
    return [_INFER_RESPONSE_TAG, encode_length(size), flag, *parts]


def encode_stream_burst(burst: ResponseBurst) -> bytes:
    """Returns the ModelStreamInferResponse of each response of a burst, with gRPC's prefixes.

    All that comes before their tensors is the same in each, except for lengths.
    """
    outputs = burst.outputs
    parts: list[Buffer] = [_FINAL_FLAGS[False], _model_head(burst.model_name, burst.model_version)]
    if burst.id:
        parts += _field(_ID_TAG, burst.id.encode())
    for output in outputs:
        key = (output.name, output.dtype, output.shape)
        parts.append(_output_heads.get(key) or _output_head(output))
    head = b"".join(parts)
    columns = [output.split(burst.count) for output in outputs]
    if any(output.sizes for output in outputs):
        return b"".join([_stream_message(head, data) for data in zip(*columns, strict=True)])
    raw_heads = [_raw_head(len(column[0])) for column in columns]
    size = len(head) + sum(map(len, raw_heads)) + sum([len(column[0]) for column in columns])
    before = [_stream_head(size) + head, *raw_heads]
    if not columns:
        return before[0] * burst.count
    before[:2] = [before[0] + before[1]]
    filled: list[Iterable[bytes]] = []
    for fixed, column in zip(before, columns, strict=True):
        filled += (repeat(fixed), column)
    return b"".join(chain.from_iterable(zip(*filled, strict=False)))


def _stream_message(head: bytes, data: Sequence[bytes]) -> bytes:
    """Returns a streamed message with its prefix."""
    raw: list[bytes] = []
    for each in data:
        raw += (_raw_head(len(each)), each)
    size = len(head) + sum(map(len, raw))
    return b"".join((_stream_head(size), head, *raw))


def _stream_head(size: int) -> bytes:
    """Returns what comes before an infer response of `size` bytes in a stream."""
    tag = _INFER_RESPONSE_TAG + encode_length(size)
    return pack_prefix(False, len(tag) + size) + tag


def encode_empty_final(model_name: str, model_version: str, request_id: str) -> list[Buffer]:
    """Returns the final streamed message without tensors; the version is as in the request."""
    response = InferResponse(model_name, model_version, request_id, [])
    return encode_stream_response(encode_infer_response(response), is_final=True)


def encode_stream_refusal(message: str, request_id: str) -> list[Buffer]:
    """Returns the streamed error for a request that was not scheduled."""
    encoded: bytes = _StreamResponse(
        error_message=message, infer_response=_Response(id=request_id)
    ).SerializeToString()
    return [encoded]


def encode_stream_failure(
    message: str, request_id: str, model_name: str, model_version: str, *, is_final: bool = True
) -> list[Buffer]:
    """Returns the streamed error for a request that was executed; usually its last message."""
    response = _Response(model_name=model_name, model_version=model_version, id=request_id)
    response.parameters["triton_final_response"].bool_param = is_final
    encoded: bytes = _StreamResponse(
        error_message=message, infer_response=response
    ).SerializeToString()
    return [encoded]


def message_size(parts: Sequence[Buffer]) -> int:
    """Returns the length of a message; InvalidArgumentError if it is too long for gRPC."""
    size = sum(map(len, parts))
    if size > MAX_MESSAGE_BYTES:
        raise InvalidArgumentError(
            f"Response has byte size {size} which exceeds gRPC's byte size limit "
            f"{MAX_MESSAGE_BYTES}."
        )
    return size


def encode_length(size: int) -> bytes:
    """Returns a length as a varint of protobuf."""
    if size < 128:
        return _ONE_BYTE[size]
    encoded = bytearray()
    while size > 127:
        encoded.append(size & 127 | 128)
        size >>= 7
    encoded.append(size)
    return bytes(encoded)


_ONE_BYTE = [bytes((size,)) for size in range(128)]
_SMALL_RAW_HEADS = [_RAW_TAG + length for length in _ONE_BYTE]


def _raw_head(size: int) -> bytes:
    return _SMALL_RAW_HEADS[size] if size < 128 else _RAW_TAG + encode_length(size)


def _field(tag: bytes, content: bytes) -> list[Buffer]:
    return [tag, encode_length(len(content)), content]


def _model_head(name: str, version: str) -> bytes:
    head = _model_heads.get((name, version))
    if head is None:
        if len(_model_heads) >= _MAX_CACHED:
            _model_heads.clear()
        head = _Response(model_name=name, model_version=version).SerializeToString()
        _model_heads[name, version] = head
    return head


def _output_head(tensor: InferTensor | OutputBurst) -> bytes:
    if len(_output_heads) >= _MAX_CACHED:
        _output_heads.clear()
    message = _Response()
    message.outputs.add(name=tensor.name, datatype=tensor.dtype.name, shape=tensor.shape)
    head: bytes = message.SerializeToString()
    _output_heads[tensor.name, tensor.dtype, tensor.shape] = head
    return head
