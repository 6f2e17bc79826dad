# SPDX-License-Identifier: Apache-2.0
"""Adds arrays that a model returns to a message, without a copy if nothing else uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.base.dtypes import BYTES, array_to_bytes_elements, encode_bytes
from pytriton.runtime.transport.arena import RemoteBlock, find_unshared_block
from pytriton.runtime.transport.payload import INLINE_TENSOR_BYTES
from pytriton.runtime.transport.refs import TensorRef

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from pytriton.base.dtypes import DataType
    from pytriton.runtime.transport.payload import Payload


def add_array(
    payload: Payload,
    arrays: Mapping[str, NDArray[Any]],
    name: str,
    dtype: DataType,
    rows: Sequence[int] | None = None,
) -> TensorRef:
    """Add `arrays[name]`, which has the type `dtype` already, to a message.

    An array in shared memory to which only `arrays` refers is sent by reference: an input that the
    model returns, or memory that was allocated for this output. `rows` are those of each request,
    by which the server splits the BYTES of a whole batch.
    """
    if dtype is BYTES:
        return _add_bytes(payload, name, arrays[name], rows)
    # No variable for the array yet, because it would count as a reference.
    if arrays[name].nbytes > INLINE_TENSOR_BYTES and arrays[name].flags.c_contiguous:
        found = find_unshared_block(arrays, name)
        if found is not None:
            array = arrays[name]
            place, offset = found
            if isinstance(place, RemoteBlock):
                block = payload.return_block(place)
            else:
                block = payload.give(place)
            return TensorRef(name, dtype.number, array.shape, offset, array.nbytes, block)
    array = arrays[name]
    size = array.nbytes
    data: bytes | memoryview
    # Data inside a message may wait to be sent, while the model changes its array.
    if size <= INLINE_TENSOR_BYTES or not array.flags.c_contiguous:
        data = array.tobytes()
    else:
        data = array.reshape(-1).view(np.uint8).data
    block, offset = payload.add((data,), size)
    return TensorRef(name, dtype.number, array.shape, offset, size, block)


def _add_bytes(
    payload: Payload, name: str, array: NDArray[Any], rows: Sequence[int] | None
) -> TensorRef:
    parts = []
    at = 0
    for count in rows or [len(array) if array.ndim else 1]:
        part = array[at : at + count] if rows else array
        parts.append(encode_bytes(array_to_bytes_elements(part)))
        at += count
    pieces = [len(part) for part in parts]
    size = sum(pieces)
    block, offset = payload.add(parts, size)
    return TensorRef(name, BYTES.number, array.shape, offset, size, block, pieces if rows else [])
