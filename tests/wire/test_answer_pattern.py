# SPDX-License-Identifier: Apache-2.0
"""Responses from the columns of a batch: the same text as for each response by itself."""

from __future__ import annotations

from itertools import accumulate
from math import prod

import numpy as np
import pytest

from pytriton.base import dtypes
from pytriton.base.columns import Column
from pytriton.base.dtypes import DataType
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.protocol.json_columns import HttpResponsePattern
from pytriton.protocol.kserve_json import ALL_BINARY, ALL_JSON, AS_BINARY, AS_JSON, OutputFormat
from pytriton.protocol.kserve_response import encode_infer_response

NUMBERS = [
    dtype for dtype in dtypes.BY_NAME.values() if dtype.name not in ("BYTES", "FP16", "BF16")
]


def column(name: str, dtype: DataType, shape: tuple[int, ...], data: bytes) -> Column:
    return Column(name, dtype, shape, prod(shape) * dtype.itemsize, memoryview(data))


def floats(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


def ordinary(
    columns: list[Column],
    rows: int | None,
    row: int,
    count: int,
    output_format: OutputFormat = ALL_JSON,
    ids: list[str] | None = None,
) -> list[tuple[int | None, bytes]]:
    """The bodies as the ordinary way writes them, each with the length of its JSON."""
    bodies = []
    for index, request_id in zip(range(count), ids or [""] * count, strict=True):
        first = row + index * (rows or 1)
        tensors = []
        for each in columns:
            shape = each.shape if rows is None else (rows, *each.shape)
            data = each.data[first * each.row_bytes : (first + (rows or 1)) * each.row_bytes]
            tensors.append(InferTensor(each.name, each.dtype, shape, data))
        response = InferResponse("m%d", "3", request_id, tensors)
        length, parts = encode_infer_response(response, output_format)
        bodies.append((length, b"".join(map(bytes, parts))))
    return bodies


@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("rows", [None, 1, 2])
@pytest.mark.parametrize("shape", [(1,), (3, 2), ()])
@pytest.mark.parametrize("count", [1, 5])
def test_bodies_are_those_of_single_responses(dtype, rows, shape, count):
    if rows is None:
        count = 1
    dice = np.random.default_rng(1)
    total = (rows or 1) * count + 3
    data = dice.integers(0, 256, total * prod(shape) * dtype.itemsize, np.uint8)
    if dtype is dtypes.BOOL:
        data %= 2
    if dtype in (dtypes.FP32, dtypes.FP64):
        data = (dice.standard_normal(total * prod(shape)) * 1e6).astype(dtype.numpy)
    columns = [
        column('o"ut%b', dtype, shape, data.tobytes()),
        column("ü", dtypes.FP32, (1,), floats(*range(total))),
    ]
    mixed = OutputFormat(AS_BINARY, {'o"ut%b': AS_JSON})
    for output_format in (ALL_JSON, ALL_BINARY, mixed):
        pattern = HttpResponsePattern("m%d", "3", rows, columns, None, output_format)
        for ids in (None, ["1", "", 'ü"\\\n%d', "2", "3"][:count]):
            bodies = pattern.encode(columns, 2, count, ids)

            assert list(bodies) == ordinary(columns, rows, 2, count, output_format, ids)


def test_one_binary_output_of_any_datatype():
    for dtype in (dtypes.FP16, dtypes.BF16, dtypes.FP32):
        columns = [column("y", dtype, (17,), bytes(range(17 * dtype.itemsize)) * 3)]
        pattern = HttpResponsePattern("m%d", "3", 1, columns, None, ALL_BINARY)

        bodies = pattern.encode(columns, 1, 2, None)

        assert list(bodies) == ordinary(columns, 1, 1, 2, ALL_BINARY)


def test_bodies_have_the_parameters_of_single_responses():
    parameters = {"sequence_id": 0, "sequence_start": False}
    columns = [column("y", dtypes.FP32, (1,), floats(1, 2))]
    tensors = [InferTensor("y", dtypes.FP32, (1, 1), floats(2))]
    response = InferResponse("m", "3", "", tensors, parameters)
    _, parts = encode_infer_response(response, ALL_JSON)

    pattern = HttpResponsePattern("m", "3", 1, columns, parameters, ALL_JSON)
    bodies = pattern.encode(columns, 1, 1, None)

    assert list(bodies) == [(None, b"".join(map(bytes, parts)))]


@pytest.mark.parametrize(
    "columns",
    [
        [],
        [column("y", dtypes.FP32, (1,), floats(1, np.nan))],
        [column("y", dtypes.FP64, (1,), np.array([np.inf, 1]).tobytes())],
        [column("y", dtypes.FP16, (1,), bytes(4))],
        [column("y", dtypes.FP32, (17,), bytes(136))],
        [column("y", dtypes.FP32, (0,), b"")],
        [Column("y", dtypes.FP32, (1,), 3, memoryview(bytes(6)))],
    ],
    ids=["none", "NaN", "infinity", "FP16", "many elements", "no elements", "wrong size"],
)
def test_unusual_outputs_are_left_to_the_ordinary_way(columns):
    pattern = HttpResponsePattern("m", "1", 1, columns, None, ALL_JSON)

    assert pattern.encode(columns, 0, 2, None) is None


def test_empty_binary_outputs_are_left_to_the_ordinary_way():
    columns = [column("y", dtypes.FP32, (0,), b"")]

    assert (
        HttpResponsePattern("m", "1", 1, columns, None, ALL_BINARY).encode(columns, 0, 2, None)
        is None
    )


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(
    "output_format", [ALL_JSON, ALL_BINARY, OutputFormat(AS_BINARY, {"t": AS_JSON})]
)
def test_strings_are_written_as_by_single_responses(rows, output_format):
    strings = [[b"a", "\u00fc".encode()], [b"", b'"\\'], [b"x" * 300, b"%d"], [b"1", b"2"]]
    pieces = [dtypes.encode_bytes(each) for each in strings]
    sizes = [len(piece) for piece in pieces]
    if rows == 2:  # rows inside of a request have no bytes of their own
        sizes = [0, sizes[0] + sizes[1], 0, sizes[2] + sizes[3]]
    offsets = [0, *accumulate(sizes)]
    text = Column("t", dtypes.BYTES, (2,), 0, memoryview(b"".join(pieces)), offsets)
    columns = [text, column("y", dtypes.FP32, (1,), floats(1, 2, 3, 4))]
    count = 4 // rows
    pattern = HttpResponsePattern("m%d", "3", rows, columns, None, output_format)
    for ids in (None, ["a", "", "b", "c"][:count]):
        expected = []
        for index in range(count):
            first, end = index * rows, (index + 1) * rows
            tensors = [
                InferTensor("t", dtypes.BYTES, (rows, 2), text.part(first, end)),
                InferTensor("y", dtypes.FP32, (rows, 1), columns[1].part(first, end)),
            ]
            response = InferResponse("m%d", "3", ids[index] if ids else "", tensors)
            length, parts = encode_infer_response(response, output_format)
            expected.append((length, b"".join(map(bytes, parts))))

        assert list(pattern.encode(columns, 0, count, ids)) == expected


@pytest.mark.parametrize("data", [b"\1\0\0\0\xff", b"\2\0\0\0a", bytes(8), b"\1\0"])
def test_strings_that_are_no_text_or_not_valid_are_left_to_the_ordinary_way(data):
    columns = [Column("t", dtypes.BYTES, (1,), 0, memoryview(data), [0, len(data)])]
    pattern = HttpResponsePattern("m", "1", 1, columns, None, ALL_JSON)

    assert pattern.encode(columns, 0, 1, None) is None
