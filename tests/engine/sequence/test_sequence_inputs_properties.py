# SPDX-License-Identifier: Apache-2.0
"""States over random sequences: each request gets what the last good answer of its own left."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from pytriton.base.dtypes import FP32, INT32, UINT64
from pytriton.base.errors import InternalError
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.base.model_spec import ControlSpec, SequenceControlKind, SequenceSpec, StateSpec
from pytriton.serving.engine.sequence.sequence_inputs import SequenceInputs
from tests.fakes import infer_request
from tests.wire.specs import model_spec

FIRST = np.array([7, 8], np.int32)
CONTROLS = (
    ControlSpec(name="START", kind=SequenceControlKind.START, dtype=INT32),
    ControlSpec(name="CORRID", kind=SequenceControlKind.CORRID, dtype=UINT64),
)
STATES = (
    StateSpec(
        input_name="i", output_name="o", dtype=INT32, dims=(2,), initial=FIRST.tobytes(),
        initial_dims=(2,),
    ),
    StateSpec(input_name="grows", output_name="grown", dtype=FP32, dims=(-1,), initial_dims=(0,)),
)  # fmt: skip
SPEC = structs.replace(
    model_spec(outputs=("y", "o"), max_batch_size=4),
    sequence=SequenceSpec(controls=CONTROLS, states=STATES),
)

numbers = st.integers(-(2**31), 2**31 - 1)
answers = st.one_of(
    st.just(None),  # an error
    st.fixed_dictionaries(
        {}, optional={"o": st.lists(numbers, min_size=2, max_size=2), "grown": st.lists(numbers)}
    ),
    st.fixed_dictionaries({"o": st.lists(numbers, max_size=1), "grown": st.just([1.0])}),  # wrong
)
steps = st.tuples(
    st.integers(1, 3),  # the sequence
    st.booleans(),  # whether it starts again
    st.sampled_from([None, ("y",), ("o",), ("y", "o")]),  # what the client wants
    answers,
)
TYPES = {"o": INT32, "grown": FP32}


def tensor(name, values):
    array = np.array(values, TYPES[name].numpy)
    return InferTensor(name, TYPES[name], (1, len(values)), memoryview(array.tobytes()))


def values_of(tensors):
    return {
        name: np.frombuffer(each.data, each.dtype.numpy).tolist() for name, each in tensors.items()
    }


class Oracle:
    """What the next request of each sequence has to get."""

    def __init__(self) -> None:
        self.first = {"i": FIRST.tolist(), "grows": []}
        self.states = dict.fromkeys((1, 2, 3), self.first)

    def keep(self, number, answer):
        taken = {}
        if "o" in answer:
            taken["i"] = answer["o"]
        if "grown" in answer:
            taken["grows"] = np.array(answer["grown"], np.float32).tolist()
        self.states[number] = self.states[number] | taken


def check_request(inputs, request, expected):
    """A request has its controls and states, and a null request beside it fits its batch."""
    null = inputs.null_request(request)

    assert values_of(request.inputs) == expected
    assert {name: each.shape for name, each in null.inputs.items()} == {
        name: each.shape for name, each in request.inputs.items()
    }


@given(st.lists(steps, max_size=40))
def test_states_belong_to_their_sequences(random_steps):
    inputs, oracle = SequenceInputs(SPEC), Oracle()
    states = {number: inputs.new_states() for number in oracle.states}
    for number, is_start, wanted, answer in random_steps:
        request = infer_request("model", {}, correlation_id=number, outputs=wanted)
        inputs.add(request, states[number], is_start=is_start, is_end=False)
        if is_start:
            oracle.states[number] = oracle.first
        check_request(
            inputs, request, {"START": [is_start], "CORRID": [number], **oracle.states[number]}
        )
        if answer is None:
            continue
        outputs = [tensor(name, values) for name, values in answer.items()]
        response = InferResponse("model", "1", "", outputs)
        try:
            inputs.take(states[number], response)
        except InternalError:
            assert len(answer["o"]) < 2
            continue
        oracle.keep(number, answer)
        is_shown = "o" in answer and (wanted is None or "o" in wanted)
        assert [each.name for each in response.outputs] == (["o"] if is_shown else [])

    sizes = {len(state["grows"]) for state in oracle.states.values()}
    assert len({state.key for state in states.values()}) == len(sizes)
