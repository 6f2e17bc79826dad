# SPDX-License-Identifier: Apache-2.0
"""Which outputs of a batch stay columns, and which become tensors of each request."""

from __future__ import annotations

import pytest

from pytriton.base.dtypes import BYTES, FP32
from pytriton.runtime.executor.batch_tensors import output_columns
from pytriton.runtime.executor.inference import RunningBatch
from pytriton.runtime.transport.frames import BatchResult
from pytriton.runtime.transport.payload import Received
from pytriton.runtime.transport.refs import TensorRef
from tests.fakes import inference


def received(ref: TensorRef) -> Received:
    return Received(BatchResult(1, 0, 0, [ref]), bytearray(ref.size), 0, {})


def ref(rows: int, row_bytes: int, dtype=FP32) -> TensorRef:
    return TensorRef("y", dtype.number, (rows, row_bytes // 4), 0, rows * row_bytes)


def batch(rows: list[int]) -> RunningBatch:
    inferences = [inference(rows=each) for each in rows]
    return RunningBatch(1, inferences, 0, set(), rows=sum(rows))


@pytest.mark.parametrize(
    "rows, row_bytes, are_columns",
    [
        (64, 64, True),
        (64, 4096, True),  # many small rows
        (4, 8192, True),  # all of it is small
        (64, 8192, False),  # each is worth to be passed on as it is
        (1, 1 << 20, False),
    ],
)
def test_large_rows_of_a_message_are_passed_on_one_by_one(rows, row_bytes, are_columns):
    message = received(ref(rows, row_bytes))
    columns = output_columns(message, message.frame.outputs, batch([1] * rows), batching=True)

    assert (columns is not None) == are_columns


def test_strings_are_columns_with_the_places_of_their_rows():
    text = TensorRef("y", BYTES.number, (4, 1), 0, 30, pieces=[5, 15, 10])
    message = received(text)
    (column,) = output_columns(message, [text], batch([1, 2, 1]), batching=True)

    assert list(column.offsets) == [0, 5, 5, 20, 30]
    assert [len(column.part(*rows)) for rows in ((0, 1), (1, 3), (3, 4), (0, 4))] == [5, 15, 10, 30]


def test_strings_without_the_sizes_of_requests_are_no_columns():
    message = received(ref(2, 8, BYTES))

    assert output_columns(message, message.frame.outputs, batch([1, 1]), batching=True) is None
