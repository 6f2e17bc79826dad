# SPDX-License-Identifier: Apache-2.0
"""Adds a model's tensors to messages: single ones, or those of a whole batch as one."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.base.dtypes import BF16, BYTES, array_to_bytes_elements, encode_bytes
from pytriton.runtime.pb_utils.tensor import Tensor
from pytriton.runtime.transport.arena import find_unshared_remote_block
from pytriton.runtime.transport.payload import INLINE_TENSOR_BYTES
from pytriton.runtime.transport.refs import TensorRef

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pytriton.runtime.transport.channel import Payload


def add_tensor(payload: Payload, tensor: Tensor) -> TensorRef:
    """Copy a tensor into the payload; the model may continue to use its array."""
    dtype, shape, array = tensor.to_wire()
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
    if column[0].as_numpy().nbytes <= INLINE_TENSOR_BYTES or (
        _reference_count(column) > _SOLE_REFERENCE
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
    arrays = [tensor.as_numpy() for tensor in tensors]
    size = math.prod(shape) * array.itemsize
    if size <= INLINE_TENSOR_BYTES and dtype is not BF16:
        # Takes half as long as `tobytes`; bfloat16 arrays do not support the buffer protocol.
        joined = b"".join(arrays)  # type: ignore[arg-type]  # arrays are buffers
        block, offset = payload.add((joined,), size)
    else:
        block, offset = payload.add([_bytes_of(array) for array in arrays], size)
    return TensorRef(first.name(), dtype.number, shape, offset, size, block)


def _bytes_of(array: NDArray[Any]) -> bytes | memoryview:
    """Returns a copy if the payload keeps the buffer, a view if it copies at once."""
    if array.nbytes <= INLINE_TENSOR_BYTES:
        return array.tobytes()
    return array.reshape(-1).view(np.uint8).data
