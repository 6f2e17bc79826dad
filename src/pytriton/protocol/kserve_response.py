# SPDX-License-Identifier: Apache-2.0
"""Encodes infer responses of the KServe protocol over HTTP: JSON, followed by binary outputs.

Large responses are encoded in pieces of a few milliseconds, so that other threads can run; the
bytes are the same. Of an output that is classified, its best classes are sent instead.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from pytriton.base import dtypes
from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.base.messages import InferTensor
from pytriton.protocol.generate import answer_shape, generate_members, nested_json
from pytriton.protocol.json_text import dump_json, dump_json_leniently
from pytriton.protocol.tensor_json import json_from_tensor, refuse_output_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from pytriton.base.dtypes import Buffer
    from pytriton.base.messages import InferResponse
    from pytriton.base.model_spec import ModelSpec
    from pytriton.protocol.kserve_json import OutputFormat

_dumps, _NUMPY = orjson.dumps, orjson.OPT_SERIALIZE_NUMPY

MAX_CLASSIFIED_ELEMENTS = 1_000_000
MAX_CLASSES = 50_000  # of all rows together; formatting this many takes 100 ms
_NEVER_CLASSIFIED = (dtypes.BOOL, dtypes.BYTES, dtypes.FP16, dtypes.BF16)


def encode_infer_response(
    response: InferResponse,
    output_format: OutputFormat,
    *,
    is_batched: bool = True,
    labels: Mapping[str, Sequence[str]] | None = None,
) -> tuple[int | None, list[Buffer]]:
    """Encode the body of an infer response.

    Returns the length of the JSON, or None if nothing follows it; and the buffers of the body in
    order. Binary outputs are not copied.

    Raises:
        ServerError: An output cannot be encoded in the requested format.
    """
    binary: list[Buffer] = []
    outputs: list[dict[str, Any]] = []
    default, listed = output_format
    for tensor in response.outputs:
        is_binary, class_count, place = listed.get(tensor.name, default)
        if class_count:
            names = labels.get(tensor.name, ()) if labels else ()
            tensor = classify(tensor, class_count, names, batched=is_batched)  # noqa: PLW2901
        name, datatype, shape = tensor.name, tensor.dtype.name, tensor.shape
        if is_binary:
            size = {"binary_data_size": len(tensor.data)}
            outputs.append({"name": name, "datatype": datatype, "shape": shape, "parameters": size})
            if len(tensor.data):
                binary.append(tensor.data)
        elif place is not None:
            outputs.append({"name": name, "datatype": datatype, "shape": shape})
        else:
            data = json_from_tensor(tensor)
            outputs.append({"name": name, "datatype": datatype, "shape": shape, "data": data})
    header = _dumps(infer_document(response, outputs), None, _NUMPY)
    return (len(header), [header, *binary]) if binary else (None, [header])


def infer_document(response: InferResponse, outputs: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the root object of the JSON; the outputs are its last member."""
    document: dict[str, Any] = {"id": response.id} if response.id else {}
    document["model_name"] = response.model_name
    document["model_version"] = response.model_version
    if response.parameters:
        document["parameters"] = orjson.Fragment(dump_json(response.parameters))
    document["outputs"] = outputs
    return document


_PIECE_ELEMENTS = 16 << 10
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY


def encode_large_infer_response(
    response: InferResponse,
    output_format: OutputFormat,
    *,
    is_batched: bool = True,
    labels: Mapping[str, Sequence[str]] | None = None,
) -> tuple[int | None, list[Buffer]]:
    """Like `pytriton.protocol.kserve_response.encode_infer_response`, but in many parts.

    Raises:
        ServerError: An output cannot be encoded in the requested format.
    """
    header: list[bytes] = [orjson.dumps(infer_document(response, []))[:-2]]
    binary: list[Buffer] = []
    default, listed = output_format
    for tensor in response.outputs:
        is_binary, class_count, place = listed.get(tensor.name, default)
        if class_count:
            names = labels.get(tensor.name, ()) if labels else ()
            tensor = classify(tensor, class_count, names, batched=is_batched)  # noqa: PLW2901
        description: dict[str, Any] = {
            "name": tensor.name, "datatype": tensor.dtype.name, "shape": tensor.shape,
        }  # fmt: skip
        if is_binary:
            description["parameters"] = {"binary_data_size": len(tensor.data)}
            header.append(orjson.dumps(description))
            if len(tensor.data):
                binary.append(tensor.data)
        elif place is not None:
            header.append(orjson.dumps(description))
        else:
            header += (orjson.dumps(description)[:-1], b',"data":', *_array(tensor), b"}")
        header.append(b",")
    if response.outputs:
        header.pop()
    header.append(b"]}")
    length = sum(map(len, header)) if binary else None
    return length, [*header, *binary]


def encode_large_generate_response(response: InferResponse, spec: ModelSpec) -> list[bytes]:
    """Like `pytriton.protocol.generate.encode_generate_response`, but in many parts.

    Raises:
        ServerError: An output cannot be encoded as JSON.
    """
    parts = [b"{"]
    for key, value in sorted(generate_members(response).items()):
        parts += (orjson.dumps(key), b":")
        if not isinstance(value, InferTensor):
            parts.append(orjson.dumps(value))
        else:
            shape = answer_shape(value, spec)
            if shape and 0 not in shape:
                parts += _array(value, shape)
            else:
                parts.append(orjson.dumps(nested_json(value, shape), None, _OPTIONS))
        parts.append(b",")
    parts[-1] = b"}"
    return parts


def _array(tensor: InferTensor, shape: tuple[int, ...] = ()) -> list[bytes]:
    """Encode the elements of an output as parts of a JSON array, which is flat without a shape."""
    parts = [b"["]
    for piece in _pieces(tensor, shape[1:]):
        parts += (piece, b",")
    if len(parts) == 1:
        return [b"[]"]
    parts[-1] = b"]"
    return parts


def _pieces(tensor: InferTensor, inner: tuple[int, ...]) -> Iterator[bytes]:
    """Yields encoded elements, several at a time, with commas between them.

    Each is a list of the shape `inner`, if that is not empty.
    """
    count = prod(tensor.shape)
    each = prod(inner)
    most = max(1, _PIECE_ELEMENTS // each) * each
    if tensor.dtype is dtypes.BYTES:
        yield from _string_pieces(tensor, count, inner, most)
        return
    size = tensor.dtype.itemsize
    if len(tensor.data) != count * size:
        refuse_output_size(tensor)
    data = memoryview(tensor.data)
    is_finite = _is_finite(tensor)
    for start in range(0, count, most):
        end = min(count, start + most)
        shape = ((end - start) // each, *inner)
        piece = InferTensor(
            tensor.name, tensor.dtype, (end - start,), data[start * size : end * size]
        )
        if is_finite:
            yield orjson.dumps(nested_json(piece, shape), None, _OPTIONS)[1:-1]
        else:
            values = np.frombuffer(piece.data, piece.dtype.numpy).reshape(shape)
            yield dump_json_leniently(values.tolist())[1:-1]


def _is_finite(tensor: InferTensor) -> bool:
    if tensor.dtype not in (dtypes.FP32, dtypes.FP64):
        return True
    array = np.frombuffer(tensor.data, tensor.dtype.numpy)
    steps = range(0, len(array), _PIECE_ELEMENTS)
    return all(np.isfinite(array[at : at + _PIECE_ELEMENTS]).all() for at in steps)


def _string_pieces(
    tensor: InferTensor, count: int, inner: tuple[int, ...], most: int
) -> Iterator[bytes]:
    found = 0
    try:
        for start, end, number in dtypes.bytes_runs(tensor.data, most):
            data = memoryview(tensor.data)[start:end]
            piece = InferTensor(tensor.name, tensor.dtype, (number,), data)
            yield orjson.dumps(nested_json(piece, (number // prod(inner), *inner)))[1:-1]
            found += number
    except ValueError:
        refuse_output_size(tensor)
    if found != count:
        refuse_output_size(tensor)


def classify(
    tensor: InferTensor, class_count: int, labels: Sequence[str] = (), *, batched: bool
) -> InferTensor:
    """Returns the best `class_count` classes of `tensor` as `value:index[:label]`, best first.

    Each row of a batch has a number for each class. There may be fewer labels than classes.

    Raises:
        InternalError: The tensor has no batch dimension, or its data does not fit its shape.
        InvalidArgumentError: The datatype is not supported, or the tensor is too large.
    """
    if tensor.dtype in _NEVER_CLASSIFIED:
        raise InvalidArgumentError(
            f"class result not available for output due to unsupported type '{tensor.dtype.name}'"
        )
    if prod(tensor.shape) > MAX_CLASSIFIED_ELEMENTS:
        raise InvalidArgumentError("classification output tensor too large")
    if batched and not tensor.shape:
        raise InternalError(
            f"expected a batch dimension in output '{tensor.name}' to classify it, got a scalar"
        )
    if len(tensor.data) != prod(tensor.shape) * tensor.dtype.itemsize:
        raise InternalError(
            f"expected {prod(tensor.shape) * tensor.dtype.itemsize} bytes in output "
            f"'{tensor.name}' to classify it, got {len(tensor.data)}"
        )
    rows = tensor.shape[0] if batched else 1
    classes = prod(tensor.shape[1:] if batched else tensor.shape)
    values = np.frombuffer(tensor.data, tensor.dtype.numpy).reshape(rows, classes)
    count = min(class_count, classes)
    if rows * count > MAX_CLASSES:
        raise InvalidArgumentError(
            f"expected a classification of at most {MAX_CLASSES} classes, got {rows * count} "
            f"for output '{tensor.name}'"
        )
    texts = [text for row in values for text in _best(row, count, labels)]
    shape = (rows, count) if batched else (count,)
    return InferTensor(tensor.name, dtypes.BYTES, shape, dtypes.encode_bytes(texts))


def _best(row: NDArray[Any], count: int, labels: Sequence[str]) -> list[bytes]:
    # Sort the reversed row and reverse the result, so that equal values are ordered by index.
    order = (len(row) - 1 - np.argsort(row[::-1], kind="stable"))[::-1][:count]
    template = "{:f}:{}" if row.dtype.kind == "f" else "{}:{}"
    texts = []
    for index in order.tolist():
        text = template.format(row[index].item(), index)
        if index < len(labels):
            text = f"{text}:{labels[index]}"
        texts.append(text.encode())
    return texts
