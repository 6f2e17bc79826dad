# SPDX-License-Identifier: Apache-2.0
"""The datatype table and the layout of BYTES tensors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.base import dtypes


@given(st.lists(st.binary(max_size=40), max_size=80))
def test_bytes_elements_survive_the_round_trip(elements: list[bytes]) -> None:
    assert dtypes.decode_bytes(dtypes.encode_bytes(elements)) == elements


@given(st.binary(min_size=1, max_size=9), st.integers(200, 600))
def test_many_elements_of_one_length_survive_the_round_trip(element: bytes, count: int) -> None:
    elements = [bytes([index % 256]) + element for index in range(count)]

    assert dtypes.decode_bytes(dtypes.encode_bytes(elements)) == elements


@pytest.mark.parametrize(
    "data, message",
    [
        (b"\x01\x00", "expected a 4-byte length at offset 0, got 2 bytes"),
        (b"\x05\x00\x00\x00ab", "element at offset 0 needs 5 bytes, got 2"),
        (b"\x01\x00\x00\x00a\xff\xff\xff\xff", "element at offset 5 needs 4294967295 bytes, got 0"),
    ],
)
def test_bytes_that_end_early_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dtypes.decode_bytes(data)


def test_every_datatype_has_its_numpy_type() -> None:
    for dtype in dtypes.BY_NAME.values():
        assert dtypes.from_numpy(dtype.numpy) is dtype
        assert dtypes.BY_NUMBER[dtype.number] is dtype
        assert dtypes.BY_CONFIG_NAME[dtype.config_name] is dtype


def test_text_and_byte_arrays_are_bytes_tensors() -> None:
    assert dtypes.from_numpy(np.dtype("U3")) is dtypes.BYTES
    assert dtypes.from_numpy(np.dtype("S3")) is dtypes.BYTES
    assert dtypes.array_to_bytes_elements(np.array(["é", "a"])) == ["é".encode(), b"a"]


def test_types_without_a_datatype_are_not_found() -> None:
    assert dtypes.from_numpy(np.dtype("complex64")) is None
    assert dtypes.from_numpy(np.dtype("datetime64[s]")) is None


def test_byte_order_does_not_matter_for_the_datatype() -> None:
    assert dtypes.from_numpy(np.dtype(">f4")) is dtypes.FP32
