# SPDX-License-Identifier: Apache-2.0
"""Writes the elements of a tensor as text, with Triton's six digits for fractions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import orjson

from pytriton.base import dtypes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytriton.base.dtypes import DataType

# Elements that are written without letting other threads run: 4096 take a millisecond.
_CHUNK = 4096


def tensor_text(dtype: DataType, data: bytes) -> str:
    """Returns the elements, separated by commas; strings are quoted as in JSON."""
    return ",".join(_parts(dtype, data))


def _parts(dtype: DataType, data: bytes) -> Iterator[str]:
    if dtype is dtypes.BYTES:
        elements = dtypes.decode_bytes(data)
        for start in range(0, len(elements), _CHUNK):
            yield ",".join([_quoted(element) for element in elements[start : start + _CHUNK]])
        return
    array = np.frombuffer(data, dtype.numpy)
    is_fraction = dtype.name in ("FP16", "BF16", "FP32", "FP64")
    for start in range(0, len(array), _CHUNK):
        values = array[start : start + _CHUNK]
        if is_fraction:
            yield ",".join([f"{value:g}" for value in values.astype(np.float64).tolist()])
        else:
            yield ",".join([str(int(value)) for value in values.tolist()])  # True is 1


def _quoted(element: bytes) -> str:
    return orjson.dumps(element.decode(errors="backslashreplace")).decode()
