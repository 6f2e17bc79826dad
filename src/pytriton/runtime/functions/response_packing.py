# SPDX-License-Identifier: Apache-2.0
"""Packs the small responses of a generator, whose outputs mostly are alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.base.dtypes import BYTES
from pytriton.runtime.functions.output_validation import convert_output
from pytriton.runtime.transport.response_rows import SMALL_RESPONSE_BYTES, pack_texts

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray

    from pytriton.base.dtypes import DataType
    from pytriton.runtime.transport.response_rows import Structure

    # The structure of a response, the bytes of its outputs, and the number of all these bytes.
    PackedResponse = tuple[Structure, list[bytes], int]


class ResponsePacker:
    """Packs responses to one request, whose client wants the outputs `wanted`.

    The outputs of an earlier response are known. Whatever has the same names, types and shapes is
    as valid as they were, and needs no other check.
    """

    __slots__ = ("_declared", "_known", "_size", "_structure", "_wanted")

    def __init__(self, declared: Mapping[str, DataType], wanted: Collection[str]) -> None:
        self._declared = declared
        self._wanted = wanted
        self._known: list[tuple[str, np.dtype[Any], tuple[int, ...]]] = []
        self._structure: Structure = ()
        self._size = 0

    def pack_known(self, outputs: Any) -> PackedResponse | None:
        """Returns what rows need of a result; None if it is not like one that was packed."""
        known = self._known
        if type(outputs) is not dict or len(outputs) != len(known):
            return None
        data = []
        for (name, array), (expected, dtype, shape) in zip(outputs.items(), known, strict=True):
            if (
                name != expected
                or type(array) is not np.ndarray
                or array.dtype is not dtype
                or array.shape != shape
            ):
                return None
            data.append(array.tobytes())
        return self._structure, data, self._size

    def pack(self, outputs: Mapping[str, NDArray[Any]]) -> PackedResponse | None:
        """Returns what rows need of valid outputs; None if they are not small.

        Raises:
            ValueError: An output cannot be converted to its declared type.
        """
        types = []
        data = []
        known = []
        size = 0
        for name, array in outputs.items():
            dtype = self._declared.get(name)
            if dtype is None or name not in self._wanted:
                continue
            packed = _pack(name, array, dtype, SMALL_RESPONSE_BYTES - size)
            if packed is None:
                return None
            size += len(packed)
            data.append(packed)
            types.append((name, dtype.number, array.shape))
            if dtype is not BYTES and array.dtype is dtype.numpy:
                known.append((name, array.dtype, array.shape))
        structure = tuple(types)
        if len(known) == len(outputs):
            self._known, self._structure, self._size = known, structure, size
        return structure, data, size


def _pack(name: str, array: NDArray[Any], dtype: DataType, room: int) -> bytes | None:
    """Returns the bytes of an output; None if there are more than `room`."""
    if array.dtype != dtype.numpy:
        array = convert_output(name, array, dtype)
    if dtype is BYTES:
        return pack_texts(array, room)
    return array.tobytes() if array.nbytes <= room else None
