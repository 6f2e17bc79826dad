# SPDX-License-Identifier: Apache-2.0
"""What generators yield, packed for rows: types, conversions, limits, and what is not known yet."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.base.dtypes import BYTES, FP32, INT32
from pytriton.runtime.functions.model_call import ResponsePacker
from pytriton.runtime.transport.response_rows import SMALL_RESPONSE_BYTES

DECLARED = {"a": FP32, "b": INT32, "text": BYTES}
OUTPUTS = {"a": np.ones((2, 1), np.float32), "b": np.arange(3, dtype=np.int32)}


@pytest.fixture
def packer():
    return ResponsePacker(DECLARED, DECLARED)


def test_response_is_packed_with_its_types_and_shapes(packer):
    structure, data, size = packer.pack(OUTPUTS)

    assert structure == (("a", FP32.number, (2, 1)), ("b", INT32.number, (3,)))
    assert data == [OUTPUTS["a"].tobytes(), OUTPUTS["b"].tobytes()]
    assert size == 20


def test_response_like_an_earlier_one_is_known(packer):
    assert packer.pack_known(OUTPUTS) is None
    structure, _, _ = packer.pack(OUTPUTS)
    known = packer.pack_known({"a": np.zeros((2, 1), np.float32), "b": OUTPUTS["b"]})

    assert known == (structure, [bytes(8), OUTPUTS["b"].tobytes()], 20)
    assert known[0] is structure


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"a": OUTPUTS["a"]},
        {"b": OUTPUTS["b"], "a": OUTPUTS["a"]},
        {**OUTPUTS, "c": OUTPUTS["a"]},
        {**OUTPUTS, "a": np.ones((1, 1), np.float32)},
        {**OUTPUTS, "a": np.ones((2, 1), np.float64)},
        {**OUTPUTS, "a": np.ones((2, 1), ">f4")},
        {**OUTPUTS, "a": np.ma.ones((2, 1), np.float32)},
        {**OUTPUTS, "a": [[1.0], [1.0]]},
        [OUTPUTS],
        None,
    ],
)
def test_other_response_is_not_known(packer, other):
    packer.pack(OUTPUTS)

    assert packer.pack_known(other) is None


def test_array_of_any_layout_is_packed_in_the_order_of_its_elements(packer):
    packer.pack({"b": np.arange(3, dtype=np.int32)})
    every_second = np.arange(6, dtype=np.int32)[::2]

    assert packer.pack_known({"b": every_second})[1] == [every_second.tobytes()]


def test_outputs_are_converted_and_texts_are_not_known(packer):
    outputs = {"a": np.ones(1, np.float64), "text": np.array([b"x", b"yz"], object)}
    for _ in range(2):
        structure, data, size = packer.pack(outputs)
        assert structure == (("a", FP32.number, (1,)), ("text", BYTES.number, (2,)))
        assert data == [np.ones(1, np.float32).tobytes(), b"\1\0\0\0x\2\0\0\0yz"]
        assert size == sum(map(len, data))

        assert packer.pack_known(outputs) is None


def test_outputs_that_nobody_wants_are_left_out():
    packer = ResponsePacker(DECLARED, ["b"])
    structure, data, _ = packer.pack({**OUTPUTS, "undeclared": OUTPUTS["a"]})

    assert structure == (("b", INT32.number, (3,)),)
    assert data == [OUTPUTS["b"].tobytes()]
    assert packer.pack_known(OUTPUTS) is None


@pytest.mark.parametrize("kind", ["numbers", "text", "texts", "both"])
@pytest.mark.parametrize("excess", [0, 1])
def test_response_of_too_many_bytes_is_not_packed(packer, kind, excess):
    size = SMALL_RESPONSE_BYTES
    outputs = {
        "numbers": {"a": np.zeros(size // 4 + excess, np.float32)},
        "text": {"text": np.array([bytes(size - 4 + excess)], object)},
        "texts": {"text": np.array([b""] * (size // 4 + excess), object)},
        "both": {"b": np.zeros(1, np.int32), "text": np.array([b"\1" * (size - 8 + excess)])},
    }[kind]
    packed = packer.pack(outputs)

    assert (packed is None) == bool(excess)
    assert packed is None or packed[2] == size


def test_output_that_cannot_be_converted_is_refused(packer):
    with pytest.raises(ValueError, match="cannot be converted"):
        packer.pack({"a": np.array(["x"])})
