# SPDX-License-Identifier: Apache-2.0
"""The infer request of the KServe protocol over HTTP: JSON, optionally followed by raw tensors.

The checks here are those of the form; whether the request fits the model is for
`pytriton.engine.validation` to say. Responses are written by `pytriton.wire.kserve_response`.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from pytriton import dtypes
from pytriton.errors import InvalidArgumentError
from pytriton.messages import InferRequest, InferTensor
from pytriton.wire.json_members import (
    boolean_member,
    parameter_value,
    refuse_reserved,
    text_member,
    unsigned_member,
)
from pytriton.wire.kserve_form import InputForm, RequestForm, binary_data_size, read_form
from pytriton.wire.output_format import ALL_BINARY, ALL_JSON, OutputFormat, read_outputs
from pytriton.wire.sequence import SEQUENCE_FLAGS, check_sequence_id
from pytriton.wire.tensor_json import tensor_from_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.dtypes import Buffer, DataType
    from pytriton.engine.model_spec import ModelSpec

MAX_SIZE = 2**63 - 1
MAX_RANK = 64  # numpy's; a product of more is never computed
MAX_SEQUENCE_ID = 2**64 - 1


def parse_header_length(value: str, body_length: int) -> int:
    """The value of the Inference-Header-Content-Length header; 0 announces a raw request.

    Raises:
        InvalidArgumentError: It is no number, or more than the body has.
    """
    if not value.removeprefix("-").isdecimal() or not value.isascii():
        raise InvalidArgumentError(f"Unable to parse Inference-Header-Content-Length, got: {value}")
    if len(value) > 11 or not -(2**31) <= int(value) < 2**31:
        raise InvalidArgumentError(
            "Unable to parse Inference-Header-Content-Length, "
            f"value is out of range [ -2147483648, 2147483647 ], got: {value}"
        )
    length = int(value)
    if not 0 <= length <= body_length:
        raise InvalidArgumentError(
            f"inference header size should be in range (0, {body_length}), got: {length}"
        )
    return length


def parse_infer(
    body: Buffer,
    header_length: int | None,
    spec: ModelSpec,
    model_version: str = "",
) -> tuple[InferRequest, OutputFormat]:
    """Read an infer request. Tensors that follow the JSON are slices of `body`, never copies.

    Args:
        body: The whole body.
        header_length: How much of it is JSON; None where the client did not say.
        spec: The model that the request is for.
        model_version: The version that the client named.

    Raises:
        ServerError: The request is malformed; the text is Triton's.
    """
    size = len(body)
    if header_length == 0 or not size:
        return _parse_raw(body, spec, model_version), ALL_BINARY
    if header_length is None or header_length == size:
        header_length = size
        form = read_form(body)
    else:
        form = read_form(memoryview(body)[:header_length])
    return request_from_form(form, body, header_length, spec, model_version)


def request_from_form(
    form: RequestForm,
    body: Buffer,
    header_length: int,
    spec: ModelSpec,
    model_version: str = "",
    read_data: Callable[[Any, DataType, int, str], Buffer] = tensor_from_json,
) -> tuple[InferRequest, OutputFormat]:
    """Make a request of its JSON, as `parse_infer` does; `read_data` reads inputs that are JSON."""
    request = InferRequest(spec.name, {}, model_version, form.id)
    output_format = ALL_JSON
    if form.parameters and _read_parameters(form.parameters, request):
        output_format = ALL_BINARY
    if _read_inputs(form.inputs, body, header_length, request, read_data) != len(body):
        raise InvalidArgumentError(f"unexpected additional input data for model '{spec.name}'")
    if form.outputs:  # an empty list asks for all of them
        listed = read_outputs(form.outputs, len(spec.outputs))
        request.outputs = tuple(listed.names)
        output_format = OutputFormat(output_format.default, listed.choices)
    return request, output_format


def _read_parameters(parameters: dict[str, Any], request: InferRequest) -> bool:
    """Take the request's parameters; true where outputs are binary unless listed otherwise."""
    binary = False
    for key, value in parameters.items():
        if key == "binary_data_output":
            binary = boolean_member(parameters, key)
        elif key == "priority":
            request.priority = unsigned_member(parameters, key)
        elif key == "timeout":
            request.timeout_us = unsigned_member(parameters, key)
        elif key in SEQUENCE_FLAGS:
            request.flags |= SEQUENCE_FLAGS[key] * boolean_member(parameters, key)
        elif key == "sequence_id":
            request.correlation_id = _sequence_id(parameters)
        else:
            refuse_reserved(key)
            request.parameters[key] = parameter_value(key, value)
    return binary


def _sequence_id(parameters: dict[str, Any]) -> int | str:
    value = parameters["sequence_id"]
    if type(value) is int and 0 <= value <= MAX_SEQUENCE_ID:
        return value
    return check_sequence_id(text_member(parameters, "sequence_id"))


def _read_inputs(
    entries: list[InputForm],
    body: Buffer,
    end: int,
    request: InferRequest,
    read_data: Callable[[Any, DataType, int, str], Buffer],
) -> int:
    """Fill the request's inputs; binary parts begin at `end`, and end at what is returned."""
    inputs = request.inputs
    for entry in entries:
        name, shape, data = entry.name, entry.shape, entry.data
        size = None
        if data is UNSET or entry.parameters is not UNSET:
            size = binary_data_size(data, entry.parameters)
        dtype = dtypes.BY_NAME.get(entry.datatype)
        count = prod(shape) if len(shape) <= MAX_RANK else MAX_SIZE + 1
        if dtype is None or count * (dtype.itemsize or 1) > MAX_SIZE:
            raise _description_error(entry, dtype, count)
        if name in inputs:
            raise InvalidArgumentError(
                f"{request_prefix(request.id)}input '{name}' already exists in request"
            )
        if size is None:
            content = read_data(data, dtype, count, name)
        else:
            content = memoryview(body)[end : end + size]
            end += size
            if end > len(body):
                raise InvalidArgumentError(
                    f"unexpected size for input '{name}', expecting {end - len(body)} "
                    f"additional bytes for model '{request.model_name}'"
                )
        inputs[name] = InferTensor(name, dtype, shape, content)
    return end


def _description_error(
    entry: InputForm, dtype: DataType | None, count: int
) -> InvalidArgumentError:
    shape = entry.shape
    if count > MAX_SIZE:
        if max(shape) > MAX_SIZE:
            problem = "contains one or more invalid dimensions"
        else:
            problem = f"causes total element count to exceed maximum size of {MAX_SIZE}"
        text = ",".join(map(str, shape))
        return InvalidArgumentError(
            f"invalid shape for input '{entry.name}': shape [{text}] {problem}"
        )
    if dtype is None:
        return InvalidArgumentError(f"invalid datatype for input {entry.name}")
    return InvalidArgumentError(
        f"byte size overflow for input '{entry.name}': element count ({count}) * "
        f"data type size ({dtype.itemsize}) exceeds maximum allowed size ({MAX_SIZE})"
    )


def _parse_raw(body: Buffer, spec: ModelSpec, model_version: str) -> InferRequest:
    """A body without JSON: all of it is the model's only input."""
    prefix = request_prefix("")
    if len(spec.inputs) != 1:
        raise InvalidArgumentError(
            f"{prefix}Raw request must only have 1 input (found 1) to be deduced but got "
            f"{len(spec.inputs)} inputs in '{spec.name}' model configuration"
        )
    ((name, expected),) = spec.inputs.items()
    dims = expected.dims
    if expected.dtype is dtypes.BYTES:
        if dims != (1,):
            raise InvalidArgumentError(
                f"{prefix}For BYTE datatype raw input '{name}', the model must have input shape [1]"
            )
        body = dtypes.encode_bytes([bytes(body)])
    elif dims.count(-1) > 1:
        raise InvalidArgumentError(
            f"{prefix}The shape of the raw input '{name}' can not be deduced because there are "
            "more than one variable-sized dimension"
        )
    elif -1 in dims:
        row_bytes = -prod(dims) * expected.dtype.itemsize
        dims = tuple(len(body) // row_bytes if size == -1 else size for size in dims)
    shape = (1, *dims) if spec.max_batch_size else dims
    tensor = InferTensor(name, expected.dtype, shape, body)
    return InferRequest(spec.name, {name: tensor}, model_version)


def request_prefix(request_id: str) -> str:
    """What Triton's core puts before its errors."""
    return f"[request id: {request_id or '<id_unknown>'}] "
