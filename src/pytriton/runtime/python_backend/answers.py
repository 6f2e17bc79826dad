# SPDX-License-Identifier: Apache-2.0
"""Checks what `execute` returns and sends, and makes frames of it, without I/O."""

from __future__ import annotations

import functools
import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.base.dtypes import BF16, BYTES, array_to_bytes_elements, encode_bytes
from pytriton.base.errors import ErrorCode, InternalError, ServerError, sendable_text
from pytriton.base.failure_records import FailureOrigin, origin_of
from pytriton.runtime.backend.failure_text import RuleError, describe
from pytriton.runtime.cuda.device_array import DeviceArray, write_to_host
from pytriton.runtime.cuda.regions import PlacedArray
from pytriton.runtime.pb_utils.failures import TritonModelException
from pytriton.runtime.pb_utils.request import RELEASE_RESCHEDULE
from pytriton.runtime.pb_utils.response import InferenceResponse
from pytriton.runtime.pb_utils.tensor import DeviceTensor, Tensor
from pytriton.runtime.python_backend.device_tensors import exports_of
from pytriton.runtime.transport.arena import find_unshared_remote_block
from pytriton.runtime.transport.frames import BatchResult, ResponseItem, ResponsesFrame
from pytriton.runtime.transport.payload import INLINE_TENSOR_BYTES
from pytriton.runtime.transport.refs import TensorRef
from pytriton.runtime.transport.response_rows import SMALL_RESPONSE_BYTES, pack_texts

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from pytriton.runtime.backend.batch import WorkerBatch
    from pytriton.runtime.pb_utils.request import InferenceRequest
    from pytriton.runtime.transport.channel import Payload
    from pytriton.runtime.transport.response_rows import Structure

SENDER_CLOSED = "Unable to send response. Response sender has been closed."


def add_tensor(payload: Payload, tensor: Tensor) -> TensorRef:
    """Copy a tensor into the payload; the model may continue to use its array."""
    dtype, shape, array = tensor.to_wire()
    if isinstance(array, DeviceArray):
        if not array.nbytes:  # those that the client or another model has already
            return TensorRef(tensor.name(), dtype.number, shape, 0, 0)
        block, offset = _add_from_device(payload, [array], array.nbytes)
        return TensorRef(tensor.name(), dtype.number, shape, offset, array.nbytes, block)
    if dtype is BYTES:
        data: bytes | memoryview = encode_bytes(array_to_bytes_elements(array))
        size = len(data)
    else:
        data, size = _bytes_of(array), array.nbytes
    block, offset = payload.add((data,), size)
    return TensorRef(tensor.name(), dtype.number, shape, offset, size, block)


def add_single(payload: Payload, column: list[Tensor]) -> TensorRef:
    """Like `add_tensor`, for the only tensor of a list, from which it is removed.

    An input that the model returns, and that nothing else refers to, is not copied: it is in the
    server's memory already.
    """
    if (
        column[0]._array.nbytes <= INLINE_TENSOR_BYTES  # noqa: SLF001  as in `_are_alike`
        or not column[0].is_cpu()
        or _reference_count(column) > _SOLE_REFERENCE
    ):
        return add_tensor(payload, column[0])
    name = column[0].name()
    dtype, shape = column[0].to_wire()[:2]
    arrays = {name: column.pop().as_numpy()}  # drops the tensor's reference to the array
    found = find_unshared_remote_block(arrays, name)
    if found is None or dtype is BYTES or not arrays[name].flags.c_contiguous:
        return add_tensor(payload, Tensor.from_array(name, arrays[name]))
    remote, offset = found
    block = payload.return_block(remote)
    return TensorRef(name, dtype.number, shape, offset, arrays[name].nbytes, block)


def _reference_count(column: list[Tensor]) -> int:
    return sys.getrefcount(column[0])


# The count for a tensor to which only its list refers; it differs by interpreter.
_SOLE_REFERENCE = _reference_count([Tensor.from_array("", np.empty(0, np.uint8))])


def add_batch_output(payload: Payload, tensors: Sequence[Tensor], row_count: int) -> TensorRef:
    """Copy one output of all requests of a batch; the tensors differ only in their rows."""
    first = tensors[0]
    dtype, shape, array = first.to_wire()
    shape = (row_count, *shape[1:])
    if dtype is BYTES:
        parts = [encode_bytes(array_to_bytes_elements(tensor.to_wire()[2])) for tensor in tensors]
        pieces = [len(part) for part in parts]
        size = sum(pieces)
        block, offset = payload.add(parts, size)
        return TensorRef(first.name(), dtype.number, shape, offset, size, block, pieces)
    arrays = [tensor._array for tensor in tensors]  # noqa: SLF001  see `_are_alike`
    size = math.prod(shape) * array.itemsize
    if DeviceTensor.was_made and DeviceArray in map(type, arrays):
        block, offset = _add_from_device(payload, arrays, size)
        return TensorRef(first.name(), dtype.number, shape, offset, size, block)
    if size <= INLINE_TENSOR_BYTES and dtype is not BF16:
        # Takes half as long as `tobytes`; bfloat16 arrays do not support the buffer protocol.
        joined = b"".join(arrays)  # type: ignore[arg-type]  # arrays are buffers
        block, offset = payload.add((joined,), size)
    else:
        block, offset = payload.add([_bytes_of(array) for array in arrays], size)
    return TensorRef(first.name(), dtype.number, shape, offset, size, block)


def _add_from_device(
    payload: Payload, arrays: Sequence[DeviceArray | NDArray[Any]], size: int
) -> tuple[int, int]:
    """Copy arrays, some of them in GPU memory, straight to where the server reads them."""
    return payload.fill(size, functools.partial(write_to_host, arrays))


def _bytes_of(array: NDArray[Any]) -> bytes | memoryview:
    """Returns a copy if the payload keeps the buffer, a view if it copies at once."""
    if array.nbytes <= INLINE_TENSOR_BYTES:
        return array.tobytes()
    return array.reshape(-1).view(np.uint8).data


def failure_text(instance_name: str, error: BaseException | str) -> str:
    """Returns the error message for all requests of a batch whose `execute` raised."""
    text = error if isinstance(error, str) else describe(error)
    return f"Failed to process the request(s) for model '{instance_name}', message: {text}"


def failure_of(instance_name: str, error: BaseException) -> tuple[str, int, FailureOrigin]:
    """Returns text and code for clients, and the origin; a `ServerError` has its own text."""
    if isinstance(error, ServerError):
        return sendable_text(error.message), int(error.code), origin_of(error)
    text = failure_text(instance_name, error)
    if isinstance(error, RuleError):  # it has no place in the user's code
        return text, int(ErrorCode.INTERNAL), origin_of(InternalError(text))
    return text, int(ErrorCode.INTERNAL), origin_of(error)


def check_decoupled_return(result: Any, instance_name: str) -> None:
    """Check the result of a decoupled model, which responds only through senders.

    Raises:
        RuleError: The result is not None.
    """
    if result is not None:
        raise RuleError(
            f"Python model '{instance_name}' is using the decoupled mode and the execute function"
            " must return None."
        )


def returned_responses(
    result: Any, requests: Sequence[InferenceRequest]
) -> Sequence[InferenceResponse | None]:
    """Returns the response to each request; None if only its sender may respond.

    Raises:
        RuleError: `execute` of a model that is not decoupled must not return this.
    """
    if result is None:
        return [None] * len(requests)
    if not isinstance(result, list):
        raise RuleError(f"Expected a list in the execute return, found type '{type(result)}'.")
    if len(result) != len(requests):
        raise RuleError(
            "Number of InferenceResponse objects do not match the number of InferenceRequest"
            f" objects. InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size"
            f" is:{len(result)}\n"
        )
    for request, response in zip(requests, result, strict=True):
        if response is not None:
            _check_response(request, response)
    return result


def _check_response(request: InferenceRequest, response: Any) -> None:
    if request.release_flags == RELEASE_RESCHEDULE:
        raise RuleError(
            "Expected a None object in the execute function return list for reschduled request,"
            f" found type '{type(response)}'."
        )
    if not isinstance(response, InferenceResponse):
        raise RuleError(
            "Expected an 'InferenceResponse' object in the execute function return list, found"
            f" type '{type(response)}'."
        )
    if request.sender is not None:
        try:
            request.sender.count_returned()
        except TritonModelException as error:
            raise RuleError(str(error)) from error


def batch_outputs(
    responses: Sequence[InferenceResponse | None],
    requests: Sequence[InferenceRequest],
    rows: Sequence[int],
) -> list[list[Tensor]] | None:
    """Returns the outputs of a whole batch, if each can be sent as one tensor; otherwise None.

    For that, every request must have a response with the same outputs, which may differ only in
    their number of rows, and all clients must request the same outputs.
    """
    names = requests[0].output_names
    table = []
    for response, request in zip(responses, requests, strict=True):
        if response is None or response.failure is not None or response.parameter_values:
            return None
        if request.output_names is not names and request.output_names != names:
            return None
        table.append(response.tensors)
    width = len(table[0])
    if len(table) > 1 and any(len(tensors) != width for tensors in table):
        return None
    columns = []
    for column in zip(*table, strict=True):
        if len(column) > 1 and not _are_alike(column, rows):
            return None
        if column[0].name() in names:
            columns.append(list(column))
    return columns


def _are_alike(tensors: Sequence[Tensor], rows: Sequence[int]) -> bool:
    # Comparing lists takes a quarter of the time that it takes to look at each tensor.
    name = tensors[0].name()
    arrays = [tensor._array for tensor in tensors]  # noqa: SLF001  a call for each costs 0.1 us
    names = [tensor._name for tensor in tensors]  # noqa: SLF001  the same
    dtypes = [array.dtype for array in arrays]
    count = len(tensors)
    if names.count(name) != count or dtypes.count(dtypes[0]) != count:
        return False
    shapes = [array.shape for array in arrays]
    tail = shapes[0][1:]
    if rows.count(rows[0]) == count:
        return shapes.count((rows[0], *tail)) == count
    return shapes == [(each, *tail) for each in rows]


def make_batch_result(
    batch: int,
    rows: Sequence[int],
    times_ns: tuple[int, int],
    columns: list[list[Tensor]],
    payload: Payload,
) -> BatchResult:
    """Returns the frame with a response to each request; an output holds the whole batch."""
    if len(rows) == 1:
        refs = [add_single(payload, column) for column in columns]
    else:
        row_count = sum(rows)
        refs = [add_batch_output(payload, tensors, row_count) for tensors in columns]
    return BatchResult(batch, *times_ns, refs)


def pack_small(
    response: InferenceResponse, names: Collection[str]
) -> tuple[Structure, list[bytes], int] | None:
    """Returns what rows need of a response: types, bytes, and their size; None if not small."""
    if response.failure is not None or response.parameter_values:
        return None
    types = []
    data = []
    size = 0
    for tensor in response.tensors:
        name = tensor.name()
        if name not in names:
            continue
        dtype, shape, array = tensor.to_wire()
        room = SMALL_RESPONSE_BYTES - size
        packed: bytes | None
        if dtype is BYTES:
            packed = pack_texts(array, room)
        else:
            packed = array.tobytes() if array.nbytes <= room else None
        if packed is None:
            return None
        size += len(packed)
        data.append(packed)
        types.append((name, dtype.number, shape))
    return tuple(types), data, size


def copied(response: InferenceResponse, names: Collection[str]) -> tuple[InferenceResponse, int]:
    """Returns a response that nothing changes any more, and the size of its tensors in bytes."""
    tensors = []
    size = 0
    for tensor in response.tensors:
        if tensor.name() not in names:
            continue
        dtype, _, array = tensor.to_wire()
        if not isinstance(array, DeviceArray):
            elements = array_to_bytes_elements(array) if dtype is BYTES else ()
            size += sum(map(len, elements)) if dtype is BYTES else array.nbytes
            tensors.append(Tensor.from_array(tensor.name(), array.copy()))
        elif isinstance(array, PlacedArray):  # nobody changes these
            tensors.append(tensor)
        else:
            size += array.nbytes
            tensors.append(Tensor.from_array(tensor.name(), array.copy()))
    copy = InferenceResponse.received(tensors, response.failure, response.parameter_values)
    return copy, size


def make_responses(
    batch: WorkerBatch,
    times_ns: tuple[int, int],
    answered: Sequence[tuple[int, InferenceResponse | None]],
    returned_batch: int,
    payload: Payload,
) -> ResponsesFrame:
    """Returns the frame; a response of None means that the request is to be executed again."""
    number = batch.execute.batch
    has_shared = bool(batch.execute.device_wishes)
    items = [
        make_item(payload, number, position, response, batch.names(position), has_shared=has_shared)
        if response is not None
        else ResponseItem(number, position, is_rescheduled=True)
        for position, response in answered
    ]
    return ResponsesFrame(*times_ns, items, returned_batch=returned_batch)


def make_item(
    payload: Payload,
    batch: int,
    position: int,
    response: InferenceResponse | None,
    names: Collection[str],
    *,
    is_final: bool = True,
    has_shared: bool = False,
) -> ResponseItem:
    """Returns one response, one error, or an end without tensors.

    `has_shared`: some of its tensors may stay in GPU memory.
    """
    if response is None:
        return ResponseItem(batch, position, None, is_final)
    if (failure := response.failure) is not None:
        return ResponseItem(batch, position, None, is_final, failure.message(), int(failure.code()))
    tensors = [tensor for tensor in response.tensors if tensor.name() in names]
    refs = [add_tensor(payload, tensor) for tensor in tensors]
    return ResponseItem(
        batch,
        position,
        refs,
        is_final,
        parameters=response.parameter_values or None,
        device=exports_of(tensors) if has_shared else None,
    )
