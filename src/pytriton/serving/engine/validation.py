# SPDX-License-Identifier: Apache-2.0
"""Validates requests against their models, for all protocols, with Triton's order and messages.

Only for annotated functions the messages are those of `pytriton.base.request_words`.
A valid request gets its batch size in `rows`, and a `batch_key` that must be equal for all requests
of a batch.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NoReturn

from pytriton.base import dtypes
from pytriton.base.dtypes import BYTES, UINT64
from pytriton.base.errors import InvalidArgumentError, UnsupportedError
from pytriton.base.messages import device_batch_key
from pytriton.base.model_spec import ModelSpec, ModelTensor, SequenceControlKind, SequenceSpec
from pytriton.base.request_words import (
    missing_inputs,
    shape_text,
    suggestion,
    unknown_input,
    wrong_input,
    wrong_tensor,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytriton.base.messages import DeviceUse, InferRequest, InferTensor


def check_correlation_id(request: InferRequest, model_name: str, sequence: SequenceSpec) -> None:
    """Check that a text is for a text input, and a number for one of numbers.

    Triton 2.51 lets the model read foreign memory if they differ.
    """
    correlation_id = request.fields.correlation_id
    if not correlation_id:  # the scheduler refuses that, or generates one
        return
    is_text = isinstance(correlation_id, str)
    for control in sequence.controls:
        if control.kind is SequenceControlKind.CORRID and is_text is not (control.dtype is BYTES):
            given = BYTES if is_text else UINT64
            raise InvalidArgumentError(
                f"[request id: {request.fields.id or '<id_unknown>'}] sequence batching control "
                f"'{control.name}' data-type is '{given.name}', but model "
                f"'{model_name}' expects '{control.dtype.name}'"
            )


def accepted_types(spec: ModelSpec) -> tuple[type[int | str], ...]:
    """Returns the types of the ids that `check_correlation_id` accepts."""
    controls = spec.sequence.controls if spec.sequence is not None else ()
    dtypes = [control.dtype for control in controls if control.kind is SequenceControlKind.CORRID]
    if not dtypes:
        return (int, str)
    return (str,) if dtypes[0] is BYTES else (int,)


_MAX_SIZE = 2**63 - 1
_BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be "
    "prepended to each input shape. If you want to specify the full shape including the batch dim "
    "in your input dims config, try setting max_batch_size to zero. See the model configuration "
    "docs for more info on max_batch_size."
)
# More strings than this are counted in a thread; this number takes 2 ms.
MANY_STRINGS = 16 << 10


class UncountedStringsError(Exception):
    """A BYTES input has too many elements to be counted here."""


def validate(request: InferRequest, spec: ModelSpec) -> None:  # noqa: C901, PLR0912  one pass: 2 us
    """Check `request` against its model and set its `rows` and `batch_key`.

    Raises InvalidArgumentError with the first problem, UnsupportedError if it has tensors in GPU
    memory that the model does not take there, and UncountedStringsError if the strings of a large
    input have to be counted first.
    """
    inputs, device = request.inputs, request.device
    if device is not None:
        _check_device(device, spec)
    if request.outputs is not None:
        _check_outputs(request, request.outputs, spec)
    if len(inputs) != len(spec.inputs):
        _check_input_names(request, spec)
    is_batched = spec.max_batch_size > 0
    if is_batched:
        request.rows = _batch_size(request, spec)
    has_optional = len(spec.required_inputs) != len(spec.inputs)
    key: list[tuple[int, ...] | bool] = []  # in the model's order, not in the client's
    for name, expected in spec.inputs.items():
        tensor = inputs.get(name)
        if tensor is None:
            _check_input_names(request, spec)
            key.append(False)
            continue
        shape, dtype = tensor.shape, tensor.dtype
        dims = shape[1:] if is_batched else shape
        if dtype is not expected.dtype:
            _refuse_dtype(request, tensor, expected, spec)
        if not fits(dims, expected.dims) if expected.has_variable_dims else dims != expected.dims:
            _refuse_shape(request, tensor, expected, spec)
        if dtype is dtypes.BYTES:
            _check_strings(request, tensor, spec)
        elif len(tensor.data) != prod(shape) * dtype.itemsize:
            _refuse_size(request, tensor, spec)
        if expected.has_variable_dims or has_optional:
            key.append(expected.is_ragged or dims)
    if spec.sequence is not None:
        check_correlation_id(request, spec.name, spec.sequence)
    if key:
        request.batch_key = tuple(key)
    if device is not None:
        request.batch_key = device_batch_key(device, tuple(key))


def _check_device(device: DeviceUse, spec: ModelSpec) -> None:
    """Refuse tensors in GPU memory for which that does not work.

    Here and not where the request came from: while it was on its way, its model may have been
    replaced by one of another kind.
    """
    if spec.platform == "ensemble" or spec.sequence is not None:
        kind = "an ensemble" if spec.platform == "ensemble" else "a model of sequences"
        raise UnsupportedError(
            f"model '{spec.name}' is {kind}, which takes no tensors in GPU memory"
        )
    for name in device.inputs:
        if name in spec.inputs and spec.inputs[name].dtype is BYTES:
            raise UnsupportedError(
                f"input '{name}' of model '{spec.name}' has strings, which the server does not "
                "read from GPU memory"
            )


def _error(request: InferRequest, message: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"[request id: {request.fields.id or '<id_unknown>'}] {message}")


def _check_outputs(request: InferRequest, outputs: tuple[str, ...], spec: ModelSpec) -> None:
    seen: set[str] = set()
    for name in outputs:
        if name not in spec.outputs:
            hint = _output_hint(name, spec) if spec.is_annotated else ""
            raise InvalidArgumentError(
                f"unexpected inference output '{name}' for model '{spec.name}'{hint}"
            )
        if name in seen:
            raise _error(request, f"output '{name}' already exists in request")
        seen.add(name)


def _output_hint(name: str, spec: ModelSpec) -> str:
    hint = suggestion(name, spec.outputs) or "."
    return f"{hint} Its outputs are: {', '.join(spec.outputs) or 'none'}"


def _check_input_names(request: InferRequest, spec: ModelSpec) -> None:
    """Check names that differ from the model's: only optional inputs may be missing."""
    inputs = request.inputs
    most, least, count = len(spec.inputs), len(spec.required_inputs), len(inputs)
    missing = [name for name in spec.inputs if name in spec.required_inputs and name not in inputs]
    if spec.is_annotated:
        for name in inputs:
            if name not in spec.inputs:
                raise unknown_input(name, spec)
        if missing:
            raise missing_inputs(missing, inputs, spec)
        return
    if least <= count <= most:
        for name in inputs:
            if name not in spec.inputs:
                raise InvalidArgumentError(
                    f"unexpected inference input '{name}' for model '{spec.name}'. "
                    f"Its input(s) are [{_quoted(spec.inputs)}]."
                )
        if not missing:
            return
    wanted = f"{most} inputs" if least == most else f"number of inputs between {least} and {most}"
    raise _error(
        request,
        f"expected {wanted} but got {count} inputs for model '{spec.name}'. "
        f"Got input(s) [{_quoted(inputs)}], but missing required input(s) [{_quoted(missing)}]. "
        "Please provide all required input(s).",
    )


def _batch_size(request: InferRequest, spec: ModelSpec) -> int:
    """Returns the first dimension, which must be equal for all inputs."""
    rows = 0
    first = None
    for tensor in request.inputs.values():
        if not tensor.shape:
            raise _error(
                request,
                f"input '{tensor.name}' has no shape but model requires batch dimension "
                f"for '{spec.name}'",
            )
        if first is None:
            first = tensor
            rows = tensor.shape[0]
        elif rows != tensor.shape[0]:
            if spec.is_annotated:
                raise InvalidArgumentError(
                    f"model '{spec.name}': expected as many rows in all inputs, got {rows} of "
                    f"'{first.name}' and {tensor.shape[0]} of '{tensor.name}'"
                )
            raise _error(
                request,
                f"input '{tensor.name}' batch size does not match other inputs for '{spec.name}'",
            )
    if 1 <= rows <= spec.max_batch_size:
        return rows
    if first is None:  # every input is optional and none was given
        return 1
    if rows < 0:
        _refuse_negative(request, first, spec)
    if spec.is_annotated:
        raise InvalidArgumentError(
            f"model '{spec.name}' takes 1 to {spec.max_batch_size} rows at a time, got {rows} rows "
            f"of input '{first.name}'"
        )
    # Triton counts an empty batch as one row, and then refuses its size or never answers.
    limit = f"<= {spec.max_batch_size}" if rows else ">= 1"
    raise _error(request, f"inference request batch-size must be {limit} for '{spec.name}'")


def fits(dims: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Returns whether dimensions are those that a configuration expects, in which -1 is any."""
    if len(dims) != len(expected):
        return False
    for given, size in zip(dims, expected, strict=True):
        if given < 0 or size not in (given, -1):
            return False
    return True


def _check_strings(request: InferRequest, tensor: InferTensor, spec: ModelSpec) -> None:
    """Check that the data has as many strings as the shape says, and that the last is complete."""
    data, size = tensor.data, len(tensor.data)
    count = prod(tensor.shape)
    if count > _MAX_SIZE:
        _refuse_size(request, tensor, spec)
    walk = tensor.strings
    if walk is None:
        if min(count, size // 4) > MANY_STRINGS:
            raise UncountedStringsError
        walk = dtypes.walk_bytes(data, count)
    found, start, position = walk
    if found == count and position == size:
        return
    if spec.is_annotated:
        came = f"{found}{' or more' if position < size else ''} texts in {size} bytes"
        problem = f"{came} for {count} in the shape {shape_text(tensor.shape)}"
        raise wrong_input(spec.inputs[tensor.name], problem, spec)
    place = f"inference input '{tensor.name}' for model '{spec.name}'"
    if position > size and found == count:
        raise InvalidArgumentError(
            f"incomplete string data for inference input '{tensor.name}', expecting string of "
            f"length {position - start} but only {size - start} bytes available"
        )
    if found == count:
        problem = f"unexpected number of string elements {found + 1} for {place}, expecting {count}"
    elif position >= size:
        problem = f"expected {count} string elements for {place}, got {found}"
    else:
        problem = (
            f"incomplete string length indicator for {place}, expecting 4 bytes but only "
            f"{size - position} bytes available. Please make sure the string length indicator is "
            "in one buffer."
        )
    raise _error(request, problem)


def _refuse_dtype(
    request: InferRequest, tensor: InferTensor, expected: ModelTensor, spec: ModelSpec
) -> NoReturn:
    if spec.is_annotated:
        raise wrong_tensor(expected, tensor.dtype, tensor.shape, spec)
    raise _error(
        request,
        f"inference input '{tensor.name}' data-type is '{tensor.dtype.name}', "
        f"but model '{spec.name}' expects '{expected.dtype.name}'",
    )


def _refuse_shape(
    request: InferRequest, tensor: InferTensor, expected: ModelTensor, spec: ModelSpec
) -> NoReturn:
    if min(tensor.shape, default=0) < 0:
        _refuse_negative(request, tensor, spec)
    if spec.is_annotated:
        raise wrong_tensor(expected, tensor.dtype, tensor.shape, spec)
    note = _BATCH_NOTE if spec.max_batch_size else ""
    raise _error(
        request,
        f"unexpected shape for input '{tensor.name}' for model '{spec.name}'. "
        f"Expected {shape_text(expected.shape)}, got {shape_text(tensor.shape)}. {note}",
    )


def _refuse_negative(request: InferRequest, tensor: InferTensor, spec: ModelSpec) -> NoReturn:
    raise _error(
        request,
        f"All input dimensions should be specified for input '{tensor.name}' for model "
        f"'{spec.name}', got {shape_text(tensor.shape)}",
    )


def _refuse_size(request: InferRequest, tensor: InferTensor, spec: ModelSpec) -> NoReturn:
    """Raise the error for data whose size does not match the shape."""
    count = prod(tensor.shape)
    if count > _MAX_SIZE:
        raise InvalidArgumentError(
            f"element count for tensor '{tensor.name}' exceeds maximum size of {_MAX_SIZE}"
        )
    expected = count * tensor.dtype.itemsize
    if expected > _MAX_SIZE:
        raise InvalidArgumentError(
            f"byte size for tensor '{tensor.name}' exceeds maximum size of {_MAX_SIZE}"
        )
    if spec.is_annotated:
        came = f"{len(tensor.data)} bytes for {expected} in the shape {shape_text(tensor.shape)}"
        raise wrong_input(spec.inputs[tensor.name], came, spec)
    raise _error(
        request,
        f"input byte size mismatch for input '{tensor.name}' for model '{spec.name}'. "
        f"Expected {expected}, got {len(tensor.data)}",
    )


def _quoted(names: Iterable[str]) -> str:
    return ",".join(f"'{name}'" for name in names)
