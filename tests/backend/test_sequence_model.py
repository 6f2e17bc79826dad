# SPDX-License-Identifier: Apache-2.0
"""What a bound sequence model gets and returns besides its own inputs and outputs."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.decorators import batch
from pytriton.decorators.context import TritonContext
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config import (
    ControlKind,
    ModelConfig,
    SequenceBatcher,
    SequenceControl,
    SequenceState,
    Tensor,
)
from pytriton.model_config.common import ModelWarmup, WarmupInput
from pytriton.runtime.functions.bound_model import BoundModel

X = Tensor(name="x", dtype=np.float32, shape=(1,))
Y = Tensor(name="y", dtype=np.float32, shape=(1,))
SEQUENCE = SequenceBatcher(
    controls=[SequenceControl(ControlKind.START)],
    states=[SequenceState("sum_in", "sum_out", np.float32, (1,), np.array([2.0]))],
)


def bound(function, sequence=SEQUENCE, **config):
    return BoundModel("m", function, [X], [Y], config=ModelConfig(sequence=sequence, **config))


@batch
def accumulate(x, START, sum_in):  # noqa: N803  the control's usual name
    return {"y": x + sum_in, "sum_out": x + sum_in}


def test_a_function_has_arguments_for_controls_and_states():
    assert bound(accumulate).initial_states() == {"sum_in": np.float32(2).tobytes()}


def test_a_function_without_them_is_refused():
    @batch
    def plain(x):
        return {"y": x}

    with pytest.raises(PyTritonValidationError, match="START"):
        bound(plain)
    bound(plain, SequenceBatcher())


def test_names_of_inputs_controls_and_states_differ():
    sequence = SequenceBatcher(controls=[SequenceControl(ControlKind.START, "x")])

    with pytest.raises(PyTritonValidationError, match="with different names, got 'x' twice"):
        bound(accumulate, sequence)


def test_a_warm_up_is_a_whole_sequence():
    seen = []

    @batch
    def remember(**inputs):
        seen.append({name: array.tolist() for name, array in inputs.items()})
        return accumulate.__wrapped__(**inputs)

    warmup = ModelWarmup("w", 2, {"x": WarmupInput(np.float32, (1,), zero_data=True)}, count=1)
    bound(remember, model_warmup=[warmup]).prepare(TritonContext())

    assert seen == [
        {"x": [[0.0], [0.0]], "START": [[True], [True]], "sum_in": [[2.0], [2.0]]},
    ]
