# SPDX-License-Identifier: Apache-2.0
"""Tensors in the typed fields of a message (`InferTensorContents`) instead of as raw bytes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pytriton import dtypes
from pytriton.dtypes import DataType
from pytriton.errors import InvalidArgumentError


class _Field(NamedTuple):
    """A field, the datatype that Triton calls it, and those that it carries."""

    name: str
    called: DataType
    carries: frozenset[DataType]


# Every field is as wide as its widest datatype; narrower integers keep their low bits. In the order
# in which Triton looks at them, which shows in its errors.
_FIELDS = tuple(
    _Field(name, carried[-1], frozenset(carried))
    for name, *carried in (
        ("bool_contents", dtypes.BOOL),
        ("int_contents", dtypes.INT8, dtypes.INT16, dtypes.INT32),
        ("int64_contents", dtypes.INT64),
        ("uint_contents", dtypes.UINT8, dtypes.UINT16, dtypes.UINT32),
        ("uint64_contents", dtypes.UINT64),
        ("fp32_contents", dtypes.FP32),
        ("fp64_contents", dtypes.FP64),
        ("bytes_contents", dtypes.BYTES),
    )
)


def tensor_from_contents(contents: Any, dtype: DataType, name: str, model_name: str) -> bytes:
    """The bytes of a tensor whose elements are in the one field that its datatype has.

    Args:
        contents: An InferTensorContents message.
        dtype: The tensor's datatype.
        name: The tensor's name, for errors.
        model_name: The model's name, for errors.

    Raises:
        InvalidArgumentError: Another field is filled, or more than one.
    """
    data = b""
    for field in _FIELDS:
        elements = getattr(contents, field.name)
        if not elements:
            continue
        place = (
            f"unexpected explicit tensor data for input tensor '{name}' for model '{model_name}'"
        )
        if data:
            raise InvalidArgumentError(f"{place}, binary data was already supplied.")
        if dtype not in field.carries:
            raise InvalidArgumentError(
                f"{place} of type '{field.called.name}', expected datatype '{dtype.name}'"
            )
        if dtype is dtypes.BYTES:
            data = dtypes.encode_bytes(elements)
        else:
            wide = np.fromiter(elements, field.called.numpy, len(elements))
            data = wide.astype(dtype.numpy).tobytes()
    return data
