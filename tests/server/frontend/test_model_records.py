# SPDX-License-Identifier: Apache-2.0
"""Model specifications as front ends get them."""

from __future__ import annotations

import os
import types

import msgspec
import pytest

from pytriton.base import dtypes
from pytriton.base.messages import RequestFields
from pytriton.base.model_spec import (
    BatcherSpec,
    ModelSpec,
    ModelTensor,
    QueuePolicySpec,
    QueueTimeoutAction,
)
from pytriton.base.sent_specs import decode_spec, encode_spec
from pytriton.runtime.transport.frontend_frames import SubmitItem
from pytriton.serving.server.frontend.chunks import FrontEndChunk
from pytriton.serving.server.frontend.records import as_batch_key, packed, unpacked
from pytriton.serving.server.frontend.session import read_request
from tests.fakes import model_spec

TENSORS = {
    dtype.name: ModelTensor(
        name=dtype.name,
        dtype=dtype,
        dims=(-1, 3),
        shape=(-1, -1, 3),
        optional=dtype is dtypes.BYTES,
        has_variable_dims=True,
        label_filename="labels.txt",
    )
    for dtype in dtypes.BY_NUMBER.values()
}
POLICY = QueuePolicySpec(
    timeout_action=QueueTimeoutAction.DELAY,
    default_timeout_us=7,
    allow_timeout_override=True,
    max_queue_size=9,
)
FULL = ModelSpec(
    name="näme",
    version=2**62,
    platform="python",
    max_batch_size=8,
    inputs=TENSORS,
    outputs=TENSORS,
    required_inputs=frozenset({"FP32", "INT8"}),
    batcher=BatcherSpec(
        preferred_batch_sizes=(2, 4),
        max_queue_delay_us=100,
        preserve_ordering=True,
        priority_levels=3,
        default_priority_level=2,
        default_queue_policy=POLICY,
        queue_policies={1: POLICY, 3: QueuePolicySpec()},
    ),
    decoupled=True,
    response_cache=True,
    iterative=True,
    labels={"FP32": ("cat", "dög")},
)


@pytest.mark.parametrize("spec", [FULL, model_spec(), model_spec(0, batches=False)])
def test_specification_is_the_same_after_it_was_sent(spec):
    again = decode_spec(encode_spec(spec))

    assert again == spec
    assert all(again.inputs[name].dtype is tensor.dtype for name, tensor in spec.inputs.items())


@pytest.mark.parametrize(
    "sent, key",
    [
        (None, None),
        ([], ()),
        ([[1, 2], [3]], ((1, 2), (3,))),
        ([["x", 1], None, 7], (("x", 1), None, 7)),
    ],
)
def test_batch_key_is_made_of_tuples_again(sent, key):
    assert as_batch_key(sent) == key
    assert hash(as_batch_key(sent)) == hash(key)


def test_arguments_of_a_question_arrive_as_they_were():
    path = os.fsdecode(b"models/\xff")
    asked = {"body": b"\xff\xfe{}", "text": "n\u00e4me", "path": path, "count": 3, "none": None}
    sent = msgspec.msgpack.encode(packed(asked))

    assert unpacked(msgspec.msgpack.decode(sent)) == asked


def test_request_of_a_front_end_has_the_name_that_means_one_model():
    item = SubmitItem(call=1, model=1, inputs=[], rows=1, received_ns=1, fields=RequestFields())
    model = types.SimpleNamespace(spec=model_spec(namespace="team_a"))

    assert read_request(None, item, model).model_name == "team_a::m"


def test_chunk_of_a_front_end_looks_at_its_sizes_once():
    class Sizes(list):
        looks = 0

        def __iter__(self):
            self.looks += 1
            return super().__iter__()

        def __getitem__(self, index):
            self.looks += 1
            return super().__getitem__(index)

    count = 100
    sizes = Sizes(range(count))
    data = bytes(index for index in range(count) for _ in range(index))
    received = types.SimpleNamespace(column=lambda _, start, end: data[start:end])
    column = types.SimpleNamespace(sizes=sizes, size=len(data))
    chunk = FrontEndChunk(
        None,
        None,
        range(count + 1),
        call=1,
        received=received,
        columns=[column],
        is_ordered=False,
    )

    pieces = [chunk.pieces(0, index, index + 1) for index in range(count)]
    assert pieces == [[bytes([index]) * index] for index in range(count)]
    assert sizes.looks == 1
