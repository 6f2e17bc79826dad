# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from pytriton.base import dtypes
from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.base.messages import InferTensor
from pytriton.protocol.kserve_response import MAX_CLASSES, MAX_CLASSIFIED_ELEMENTS, classify


def classes(array, count, labels=(), *, batched=False):
    array = np.asarray(array)
    dtype = dtypes.from_numpy(array.dtype)
    result = classify(
        InferTensor("x", dtype, array.shape, array.tobytes()), count, labels, batched=batched
    )
    assert result.dtype is dtypes.BYTES
    return result.shape, [text.decode() for text in dtypes.decode_bytes(result.data)]


def test_best_classes_come_first():
    assert classes([1, 5, 3], 2) == ((2,), ["5:1", "3:2"])


def test_equal_values_keep_their_order():
    assert classes([7, 9, 9, 7], 4)[1] == ["9:1", "9:2", "7:0", "7:3"]


def test_floats_have_six_decimals():
    assert classes(np.float32([0.5, 1e20]), 2)[1] == [
        "100000002004087734272.000000:1",
        "0.500000:0",
    ]


def test_each_item_of_a_batch_has_its_classes():
    shape, texts = classes([[1, 2], [4, 3]], 1, batched=True)

    assert (shape, texts) == ((2, 1), ["2:1", "4:0"])


def test_more_classes_than_there_are_give_all():
    assert classes([[[1, 2], [3, 4]]], 99, batched=True)[0] == (1, 4)


def test_labels_are_appended_where_known():
    assert classes([1, 2, 3], 3, ("a", "b"))[1] == ["3:2", "2:1:b", "1:0:a"]


@pytest.mark.parametrize("shape,batched", [((0,), False), ((2, 0), True), ((0, 2), True)])
def test_nothing_has_no_classes(shape, batched):
    assert classes(np.zeros(shape, np.float32), 3, batched=batched)[1] == []


@pytest.mark.parametrize("dtype", [dtypes.BOOL, dtypes.BYTES, dtypes.FP16, dtypes.BF16], ids=repr)
def test_types_without_an_order_are_refused(dtype):
    with pytest.raises(InvalidArgumentError, match=f"unsupported type '{dtype.name}'"):
        classify(InferTensor("x", dtype, (1,), b""), 1, batched=False)


def test_too_many_elements_are_refused_before_they_are_sorted():
    tensor = InferTensor("x", dtypes.UINT8, (MAX_CLASSIFIED_ELEMENTS + 1,), b"")

    with pytest.raises(InvalidArgumentError, match="classification output tensor too large"):
        classify(tensor, 1, batched=False)


def test_more_classes_than_anybody_reads_are_refused():
    values = np.zeros((2, MAX_CLASSES), np.float32)
    tensor = InferTensor("OUT", dtypes.FP32, values.shape, values.tobytes())

    with pytest.raises(InvalidArgumentError, match=f"at most {MAX_CLASSES} classes"):
        classify(tensor, MAX_CLASSES, batched=True)
    assert classify(tensor, 3, batched=True).shape == (2, 3)


def test_scalar_has_no_batch_to_tell_classes_of():
    tensor = InferTensor("OUT", dtypes.FP32, (), bytes(4))

    with pytest.raises(InternalError, match="expected a batch dimension in output 'OUT'"):
        classify(tensor, 1, batched=True)
    assert classify(tensor, 1, batched=False).shape == (1,)


def test_output_without_the_bytes_of_its_shape_is_refused():
    tensor = InferTensor("OUT", dtypes.FP32, (1, 3), bytes(11))

    with pytest.raises(InternalError, match=r"expected 12 bytes in output 'OUT' .* got 11"):
        classify(tensor, 1, batched=True)
