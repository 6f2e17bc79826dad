# SPDX-License-Identifier: Apache-2.0
"""Which responses of a model.py become rows, and that they arrive like others."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.base.dtypes import BYTES, INT32
from pytriton.runtime.pb_utils.failures import TritonError
from pytriton.runtime.pb_utils.response import InferenceResponse
from pytriton.runtime.pb_utils.tensor import Tensor
from pytriton.runtime.python_backend.answers import pack_small
from pytriton.runtime.transport.response_rows import SMALL_RESPONSE_BYTES
from tests.python_backend.sender_models import decoupled, items_until

X = np.zeros((1, 1), np.float32)
NUMBERS = Tensor("y", np.arange(3, dtype=np.int32))
TEXTS = Tensor("t", np.array([b"a", "bc"], object))


def test_wanted_outputs_are_packed():
    response = InferenceResponse([NUMBERS, Tensor("unwanted", np.zeros(9999)), TEXTS])
    structure, data, size = pack_small(response, ["t", "y"])

    assert structure == (("y", INT32.number, (3,)), ("t", BYTES.number, (2,)))
    assert data == [NUMBERS.as_numpy().tobytes(), b"\1\0\0\0a\2\0\0\0bc"]
    assert size == 12 + 11


@pytest.mark.parametrize(
    "response",
    [
        InferenceResponse(error=TritonError("no")),
        InferenceResponse([NUMBERS], parameters={"a": 1}),
        InferenceResponse([Tensor("y", np.zeros(SMALL_RESPONSE_BYTES + 1, np.uint8))]),
        InferenceResponse([Tensor("y", np.array([bytes(SMALL_RESPONSE_BYTES)], object))]),
        InferenceResponse([Tensor("y", np.array([b""] * SMALL_RESPONSE_BYTES, object))]),
        InferenceResponse([Tensor("y", np.zeros(SMALL_RESPONSE_BYTES - 4, np.uint8)), TEXTS]),
    ],
)
def test_other_responses_are_items(response):
    assert pack_small(response, ["y", "t"]) is None


def test_largest_small_response_is_packed():
    whole = InferenceResponse([Tensor("y", np.zeros(SMALL_RESPONSE_BYTES, np.uint8))])

    assert pack_small(whole, ["y"])[2] == SMALL_RESPONSE_BYTES


def test_rows_and_items_of_a_model_keep_their_order(worker):
    rig = decoupled(
        worker,
        """
def send(value):
    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", np.asarray(value))]))

for number in range(12):
    if number % 4 == 0:
        send([b"text %d" % number])
    elif number % 4 == 1:
        send(np.full(5000, number, np.int32))
    else:
        send(np.array([number], np.int32))
sender.send(flags=FINAL)
""",
    )
    rig.execute({"x": X})
    items, _ = items_until(rig, 13)

    shapes = [len(answer["y"]) for _, answer in items[:-1]]
    assert shapes == [1, 5000, 1, 1] * 3
    firsts = [answer["y"].flat[0] for _, answer in items[:-1]]
    assert firsts == [b"text %d" % n if n % 4 == 0 else n for n in range(12)]
