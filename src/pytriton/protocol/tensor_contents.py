# SPDX-License-Identifier: Apache-2.0
"""Converts tensors in the typed fields of a message (`InferTensorContents`) to bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pytriton.base import dtypes
from pytriton.base.dtypes import DataType
from pytriton.base.errors import InvalidArgumentError
from pytriton.protocol.large_contents import LargeContents, read_elements

if TYPE_CHECKING:
    from pytriton.base.dtypes import Buffer


class _Field(NamedTuple):
    """A field, its datatype (also in Triton's errors), and the datatypes of tensors in it."""

    number: int
    name: str
    dtype: DataType
    accepted: frozenset[DataType]


# A field has the widest of its datatypes; narrower integers keep their low bits. The order is that
# of Triton's checks, because it decides which error is reported.
_FIELDS = tuple(
    _Field(number, name, carried[-1], frozenset(carried))
    for number, name, *carried in (
        (1, "bool_contents", dtypes.BOOL),
        (2, "int_contents", dtypes.INT8, dtypes.INT16, dtypes.INT32),
        (3, "int64_contents", dtypes.INT64),
        (4, "uint_contents", dtypes.UINT8, dtypes.UINT16, dtypes.UINT32),
        (5, "uint64_contents", dtypes.UINT64),
        (6, "fp32_contents", dtypes.FP32),
        (7, "fp64_contents", dtypes.FP64),
        (8, "bytes_contents", dtypes.BYTES),
    )
)


def tensor_from_contents(contents: Any, dtype: DataType, name: str, model_name: str) -> Buffer:
    """Returns the bytes of a tensor whose elements are in the field for its datatype.

    Args:
        contents: An InferTensorContents message, or LargeContents.
        dtype: The tensor's datatype.
        name: The tensor's name, for errors.
        model_name: The model's name, for errors.

    Raises:
        InvalidArgumentError: Another field has elements, or more than one has.
    """
    data: Buffer = b""
    large = contents.fields() if isinstance(contents, LargeContents) else None
    for field in _FIELDS:
        elements: Any = getattr(contents, field.name) if large is None else large.get(field.number)
        if not elements:
            continue
        place = (
            f"unexpected explicit tensor data for input tensor '{name}' for model '{model_name}'"
        )
        if data:
            raise InvalidArgumentError(f"{place}, binary data was already supplied.")
        if dtype not in field.accepted:
            raise InvalidArgumentError(
                f"{place} of type '{field.dtype.name}', expected datatype '{dtype.name}'"
            )
        if large is not None:
            data = read_elements(field.number, elements, field.dtype, dtype)
        elif dtype is dtypes.BYTES:
            data = dtypes.encode_bytes(elements)
        else:
            wide = np.fromiter(elements, field.dtype.numpy, len(elements))
            data = wide.astype(dtype.numpy).tobytes()
    return data
