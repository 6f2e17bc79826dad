# SPDX-License-Identifier: Apache-2.0
"""The classification extension: returns the best classes of an output instead of its numbers."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.base import dtypes
from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.base.messages import InferTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

MAX_ELEMENTS = 1_000_000
MAX_TEXTS = 50_000  # of all rows together; formatting this many takes 100 ms
_UNSUPPORTED = (dtypes.BOOL, dtypes.BYTES, dtypes.FP16, dtypes.BF16)


def classify(
    tensor: InferTensor, class_count: int, labels: Sequence[str] = (), *, batched: bool
) -> InferTensor:
    """Returns the best `class_count` classes of `tensor` as `value:index[:label]`, best first.

    Each row of a batch has a number for each class. There may be fewer labels than classes.

    Raises:
        InternalError: The tensor has no batch dimension, or its data does not fit its shape.
        InvalidArgumentError: The datatype is not supported, or the tensor is too large.
    """
    if tensor.dtype in _UNSUPPORTED:
        raise InvalidArgumentError(
            f"class result not available for output due to unsupported type '{tensor.dtype.name}'"
        )
    if prod(tensor.shape) > MAX_ELEMENTS:
        raise InvalidArgumentError("classification output tensor too large")
    if batched and not tensor.shape:
        raise InternalError(
            f"expected a batch dimension in output '{tensor.name}' to classify it, got a scalar"
        )
    if len(tensor.data) != prod(tensor.shape) * tensor.dtype.itemsize:
        raise InternalError(
            f"expected {prod(tensor.shape) * tensor.dtype.itemsize} bytes in output "
            f"'{tensor.name}' to classify it, got {len(tensor.data)}"
        )
    rows = tensor.shape[0] if batched else 1
    classes = prod(tensor.shape[1:] if batched else tensor.shape)
    values = np.frombuffer(tensor.data, tensor.dtype.numpy).reshape(rows, classes)
    count = min(class_count, classes)
    if rows * count > MAX_TEXTS:
        raise InvalidArgumentError(
            f"expected a classification of at most {MAX_TEXTS} classes, got {rows * count} "
            f"for output '{tensor.name}'"
        )
    texts = [text for row in values for text in _best(row, count, labels)]
    shape = (rows, count) if batched else (count,)
    return InferTensor(tensor.name, dtypes.BYTES, shape, dtypes.encode_bytes(texts))


def _best(row: NDArray[Any], count: int, labels: Sequence[str]) -> list[bytes]:
    # Sort the reversed row and reverse the result, so that equal values are ordered by index.
    order = (len(row) - 1 - np.argsort(row[::-1], kind="stable"))[::-1][:count]
    template = "{:f}:{}" if row.dtype.kind == "f" else "{}:{}"
    texts = []
    for index in order.tolist():
        text = template.format(row[index].item(), index)
        if index < len(labels):
            text = f"{text}:{labels[index]}"
        texts.append(text.encode())
    return texts
