# SPDX-License-Identifier: Apache-2.0
"""The classification extension: an output as texts of its best classes instead of numbers."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton import dtypes
from pytriton.errors import InternalError, InvalidArgumentError
from pytriton.messages import InferTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

MAX_ELEMENTS = 1_000_000
MAX_TEXTS = 50_000  # of all rows: so many take 100 ms to write
_UNSUPPORTED = (dtypes.BOOL, dtypes.BYTES, dtypes.FP16, dtypes.BF16)


def classify(
    tensor: InferTensor, class_count: int, labels: Sequence[str] = (), *, batched: bool
) -> InferTensor:
    """The best `class_count` classes of `tensor`, best first, as `value:index[:label]` texts.

    Args:
        tensor: Numbers, one for each class; for a batch one row for each item.
        class_count: How many to name; no more than there are.
        labels: The names of the classes, as far as they are known.
        batched: Whether the first dimension is the batch.

    Raises:
        InternalError: The model gave no batch dimension, or not the bytes of its shape.
        InvalidArgumentError: The datatype has no order here, or the tensor is too large to sort.
    """
    if tensor.dtype in _UNSUPPORTED:
        raise InvalidArgumentError(
            f"class result not available for output due to unsupported type '{tensor.dtype.name}'"
        )
    if prod(tensor.shape) > MAX_ELEMENTS:
        raise InvalidArgumentError("classification output tensor too large")
    if batched and not tensor.shape:
        raise InternalError(
            f"expected a batch dimension in output '{tensor.name}' to tell its classes, got a "
            "scalar"
        )
    if len(tensor.data) != prod(tensor.shape) * tensor.dtype.itemsize:
        raise InternalError(
            f"expected {prod(tensor.shape) * tensor.dtype.itemsize} bytes in output "
            f"'{tensor.name}' to tell its classes, got {len(tensor.data)}"
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
    # A stable sort of the reversed row, read backwards: equal values keep the order of their index.
    order = (len(row) - 1 - np.argsort(row[::-1], kind="stable"))[::-1][:count]
    form = "{:f}:{}" if row.dtype.kind == "f" else "{}:{}"
    texts = []
    for index in order.tolist():
        text = form.format(row[index].item(), index)
        if index < len(labels):
            text = f"{text}:{labels[index]}"
        texts.append(text.encode())
    return texts
