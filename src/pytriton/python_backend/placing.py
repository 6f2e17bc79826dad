# SPDX-License-Identifier: Apache-2.0
"""Puts a model's tensors into messages, one by one or those of a whole batch in one piece."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.dtypes import BF16, BYTES, array_to_bytes_elements, encode_bytes
from pytriton.pb_utils.tensor import Tensor
from pytriton.transport.arena import find_unshared_remote_block
from pytriton.transport.frames import TensorRef
from pytriton.transport.payload import INLINE_TENSOR_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pytriton.transport.channel import Payload


def place(payload: Payload, tensor: Tensor) -> TensorRef:
    """Copy a tensor into the payload, so that the model may go on to use its array."""
    dtype, shape, array = tensor.to_wire()
    if dtype is BYTES:
        data: bytes | memoryview = encode_bytes(array_to_bytes_elements(array))
        size = len(data)
    else:
        data, size = _bytes_of(array), array.nbytes
    block, offset = payload.add((data,), size)
    return TensorRef(tensor.name(), dtype.number, shape, offset, size, block)


def place_only(payload: Payload, column: list[Tensor]) -> TensorRef:
    """Like `place` for the only tensor of a list, which is taken out of it.

    An input that the model passes on, and that nothing else refers to, is not copied: it is in the
    server's memory already.
    """
    if column[0].as_numpy().nbytes <= INLINE_TENSOR_BYTES or (
        _reference_count(column) > _SOLE_REFERENCE
    ):
        return place(payload, column[0])
    name = column[0].name()
    dtype, shape = column[0].to_wire()[:2]
    arrays = {name: column.pop().as_numpy()}  # the tensor is gone then, and does not count
    found = find_unshared_remote_block(arrays, name)
    if found is None or dtype is BYTES or not arrays[name].flags.c_contiguous:
        return place(payload, Tensor.from_array(name, arrays[name]))
    remote, offset = found
    block = payload.return_block(remote)
    return TensorRef(name, dtype.number, shape, offset, arrays[name].nbytes, block)


def _reference_count(column: list[Tensor]) -> int:
    return sys.getrefcount(column[0])


# Of a tensor that only its column has: interpreters differ.
_SOLE_REFERENCE = _reference_count([Tensor.from_array("", np.empty(0, np.uint8))])


def place_column(payload: Payload, tensors: Sequence[Tensor], row_count: int) -> TensorRef:
    """Copy one output of all requests of a batch; they differ in nothing but the rows they have."""
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
        # Half as long as calling `tobytes`; bfloat16 is not numpy's own and does not offer it.
        joined = b"".join(arrays)  # type: ignore[arg-type]  # arrays are buffers, says numpy
        block, offset = payload.add((joined,), size)
    else:
        block, offset = payload.add([_bytes_of(array) for array in arrays], size)
    return TensorRef(first.name(), dtype.number, shape, offset, size, block)


def _bytes_of(array: NDArray[Any]) -> bytes | memoryview:
    """A copy where the payload keeps what it is given, a view where it copies at once."""
    if array.nbytes <= INLINE_TENSOR_BYTES:
        return array.tobytes()
    return array.reshape(-1).view(np.uint8).data
