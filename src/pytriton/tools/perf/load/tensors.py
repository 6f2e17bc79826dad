# SPDX-License-Identifier: Apache-2.0
"""Tensors as plain bytes, on their way to the generator's process and back."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from pytriton.base import dtypes
from pytriton.tools.perf.errors import GeneratorError


class PlainTensor(msgspec.Struct, frozen=True):
    """A tensor: its data is laid out as in the protocol's binary form."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


def plain_tensor(name: str, array: NDArray[Any], datatype: str = "") -> PlainTensor:
    """The tensor of an array.

    Raises:
        LoadError: the protocol has no datatype for the array.
    """
    if not datatype:
        found = dtypes.from_numpy(array.dtype)
        if found is None:
            known = ", ".join(dtypes.BY_NAME)
            raise GeneratorError(
                f"tensor '{name}': expected one of {known}, got dtype {array.dtype}"
            )
        datatype = found.name
    if datatype == "BYTES":
        data = dtypes.encode_bytes(dtypes.array_to_bytes_elements(array))
    else:
        data = np.ascontiguousarray(array).tobytes()
    return PlainTensor(name, datatype, array.shape, data)


def json_values(tensor: PlainTensor) -> list[Any]:
    """The elements as JSON has them, in one flat list.

    Raises:
        LoadError: a string is not UTF-8, which JSON cannot carry.
    """
    if tensor.datatype != "BYTES":
        values: list[Any] = array_of(tensor).ravel().tolist()
        return values
    try:
        return [element.decode() for element in dtypes.decode_bytes(tensor.data)]
    except UnicodeDecodeError as error:
        raise GeneratorError(
            f"tensor '{tensor.name}': expected text in UTF-8, which JSON needs, "
            f"got {error.object[:40]!r}; use the binary tensor format"
        ) from error


def array_of(tensor: PlainTensor) -> NDArray[Any]:
    """The array of a tensor; its strings are `bytes`."""
    if tensor.datatype == "BYTES":
        return dtypes.bytes_elements_to_array(dtypes.decode_bytes(tensor.data), tensor.shape)
    return np.frombuffer(tensor.data, dtypes.BY_NAME[tensor.datatype].numpy).reshape(tensor.shape)


def from_json_values(name: str, datatype: str, shape: list[int], values: Any) -> PlainTensor:
    """The tensor of an output that came as JSON, nested or flat."""
    if datatype == "BYTES":
        elements = [str(value).encode() for value in np.ravel(np.array(values, object))]
        return PlainTensor(name, datatype, tuple(shape), dtypes.encode_bytes(elements))
    array = np.array(values).astype(dtypes.BY_NAME[datatype].numpy)
    return PlainTensor(name, datatype, tuple(shape), array.tobytes())
