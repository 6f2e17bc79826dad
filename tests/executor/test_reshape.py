# SPDX-License-Identifier: Apache-2.0
"""Shapes of clients and of models, and batches of requests whose shapes differ."""

from __future__ import annotations

from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.base import dtypes
from pytriton.base.messages import InferRequest, InferTensor
from pytriton.base.model_spec import Reshape
from pytriton.runtime.backend.flow_control import OpenBatches
from pytriton.runtime.executor.batch_tensors import add_input, reshape_inputs
from pytriton.runtime.executor.batch_tracker import BatchTracker
from pytriton.runtime.executor.inference import CLOSED_SINK, Inference, ModelLabels
from pytriton.runtime.python_backend.model_backend import make_requests
from pytriton.runtime.transport.frames import BatchResult, Execute, ResponseItem, ResponsesFrame
from pytriton.runtime.transport.payload import Payload, Received
from pytriton.runtime.transport.refs import TensorRef

SIZES = st.integers(1, 5)


@pytest.mark.parametrize(
    "source,target,shape,expected",
    [
        ((4,), (2, 2), (3, 4), (3, 2, 2)),
        ((1,), (), (3, 1), (3,)),
        ((), (1,), (3,), (3, 1)),
        ((-1, 4, -1), (-1, 2, 2, -1), (3, 5, 4, 6), (3, 5, 2, 2, 6)),
        ((-1,), (1, -1), (3, 0), (3, 1, 0)),
        # What models may return, although their configuration says otherwise.
        ((2, 2), (4,), (3, 4), (3, 4)),
        ((2, 2), (4,), (3, 5), None),
        ((2, 2), (4,), (), None),
        ((-1, 2, 2), (-1, 4), (3, 5, 4), (3, 5, 4)),
        ((-1, 2, 2), (-1, 4), (3,), None),
        ((1, -1), (-1,), (3,), None),
    ],
)
def test_shape_of_a_batch_is_converted(source, target, shape, expected):
    assert Reshape(source, target).convert(shape, batching=True) == expected


def test_shape_without_batch_dimension_is_converted():
    assert Reshape((4,), (2, 2)).convert((4,), batching=False) == (2, 2)
    assert Reshape((2, 2), (4,)).convert((2, 3), batching=False) is None


@st.composite
def reshapes(draw: Any) -> tuple[Reshape, tuple[int, ...]]:
    """A reshape as the rules for configurations allow it, and a shape that fits to its source."""
    source: list[int] = []
    target: list[int] = []
    shape = []
    for is_variable in draw(st.lists(st.booleans(), max_size=4)):
        if is_variable:
            source.append(-1)
            target.append(-1)
            shape.append(draw(SIZES))
        else:
            factors = draw(st.lists(SIZES, min_size=1, max_size=3))
            source.append(prod(factors))
            target += factors
            shape.append(prod(factors))
    return Reshape(tuple(source), tuple(target)), tuple(shape)


@given(reshapes(), st.integers(0, 4))
def test_conversion_keeps_all_elements_and_can_be_undone(made, rows):
    reshape, dims = made
    converted = reshape.convert((rows, *dims), batching=True)

    assert converted is not None
    assert prod(converted) == rows * prod(dims)
    assert len(converted) == 1 + len(reshape.target)
    assert all(dim in (-1, size) for dim, size in zip(reshape.target, converted[1:], strict=True))
    back = Reshape(reshape.target, reshape.source)
    assert back.convert(converted, batching=True) == (rows, *dims)


def request_of(array: np.ndarray[Any, Any]) -> InferRequest:
    if array.dtype == object:
        dtype, data = dtypes.BYTES, dtypes.encode_bytes(dtypes.array_to_bytes_elements(array))
    else:
        dtype, data = dtypes.FP32, array.tobytes()
    return InferRequest("m", {"x": InferTensor("x", dtype, array.shape, data)}, rows=len(array))


def received_arrays(arrays: list[Any], reshape: Reshape | None = None) -> list[Any]:
    """What a model.py gets for a batch of these tensors of a ragged input."""
    requests = [request_of(array) for array in arrays]
    rows = [request.rows for request in requests]
    payload = Payload(None)
    ref = add_input(payload, "x", requests, sum(rows), batching=True, ragged=True)
    if reshape is not None:
        reshape_inputs([ref], {"x": reshape}, batching=True)
    execute = Execute(1, rows, [ref])
    received = Received(execute, bytearray(b"".join(payload.inline)), 0, {})
    none: Any = None
    reader: Any = SimpleNamespace(mailbox=None)
    batches = OpenBatches(none, reader, [], is_decoupled=False, is_batching=True)
    made = make_requests(batches.begin(received), none)
    return [request.inputs()[0].as_numpy() for request in made]


SHAPES = st.lists(st.tuples(SIZES, st.integers(0, 3), SIZES), min_size=1, max_size=6)


@given(SHAPES, st.booleans())
def test_requests_of_a_ragged_batch_get_their_own_tensors(shapes, is_text):
    arrays = [
        np.arange(prod(shape), dtype=np.float32).reshape(shape) + number
        for number, shape in enumerate(shapes)
    ]
    if is_text:
        arrays = [array.astype("S").astype(object) for array in arrays]

    received = received_arrays(arrays)

    for given_array, array in zip(arrays, received, strict=True):
        assert array.dtype == given_array.dtype
        assert array.shape == given_array.shape
        assert array.tolist() == given_array.tolist()


def test_tensors_of_a_ragged_batch_are_reshaped_one_by_one():
    arrays = [np.arange(size, dtype=np.float32).reshape(1, -1, 4) for size in (4, 12)]

    received = received_arrays(arrays, Reshape((-1, 4), (-1, 2, 2)))

    assert [array.shape for array in received] == [(1, 1, 2, 2), (1, 3, 2, 2)]
    assert received[1].ravel().tolist() == list(range(12))


class _Events:
    """Keeps the outcomes of a tracker."""

    costs = None  # of batches: nobody asks for them here

    def __init__(self) -> None:
        self.outcomes: list[Any] = []

    def on_outcomes(self, instance, batch, outcomes, times_ns):
        self.outcomes += outcomes


@pytest.fixture
def tracker():
    """A tracker with one batch of two requests, whose output `y` is reshaped; and its events."""
    events: Any = _Events()
    none: Any = None
    labels = ModelLabels(
        "m",
        "1",
        ["x"],
        batching=True,
        input_reshapes={"x": Reshape((4,), (2, 2))},
        output_reshapes={"y": Reshape((2, 2), (4,))},
    )
    made = BatchTracker(none, labels, events)
    array = np.zeros((1, 4), np.float32)
    inferences = [Inference(request_of(array), CLOSED_SINK) for _ in range(2)]
    frame = made.begin(inferences, 0, Payload(None))

    assert frame.inputs[0].shape == (2, 2, 2)
    return made, events


def output(*shape: int) -> TensorRef:
    return TensorRef("y", dtypes.FP32.number, shape, 0, 4 * prod(shape))


def hear(tracker: BatchTracker, frame: BatchResult | ResponsesFrame) -> None:
    assert tracker.handle(Received(frame, bytearray(64), 0, {}))


def test_outputs_of_a_batch_have_the_shape_that_clients_expect(tracker):
    made, events = tracker
    hear(made, BatchResult(1, 0, 0, [output(2, 2, 2)]))

    assert [each.response.outputs[0].shape for each in events.outcomes] == [(1, 4), (1, 4)]


def test_batch_with_an_output_of_another_size_fails(tracker):
    made, events = tracker
    hear(made, BatchResult(1, 0, 0, [output(2, 3)]))

    assert [each.error.message for each in events.outcomes] == [
        "output tensor shape does not match size of output for 'y'"
    ] * 2
    assert not made.running


def test_response_with_an_output_of_another_size_is_an_error(tracker):
    made, events = tracker
    items = [
        ResponseItem(1, 0, [output(1, 2, 2)]),
        ResponseItem(1, 1, [output(1, 3)], is_final=False),
        ResponseItem(1, 1, [output(1, 4)]),
    ]
    hear(made, ResponsesFrame(0, 0, items))

    first, wrong, last = events.outcomes
    assert first.response.outputs[0].shape == last.response.outputs[0].shape == (1, 4)
    assert wrong.response is None
    assert wrong.error.message == "output tensor shape does not match size of output for 'y'"
    assert not wrong.is_final
