# SPDX-License-Identifier: Apache-2.0
"""Controls and states of requests that their model executes several times."""

from __future__ import annotations

import numpy as np

from pytriton.base.dtypes import FP32, INT32, UINT64
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.base.model_spec import ControlSpec, SequenceControlKind, SequenceSpec, StateSpec
from pytriton.runtime.executor.inference import Outcome

CONTROLS = (
    ControlSpec(name="START", kind=SequenceControlKind.START, dtype=INT32),
    ControlSpec(name="CORRID", kind=SequenceControlKind.CORRID, dtype=UINT64),
)
STATE = StateSpec(input_name="past", output_name="next", dtype=INT32, dims=(-1,), initial_dims=(0,))


def values(request):
    return {
        name: np.frombuffer(tensor.data, tensor.dtype.numpy).reshape(tensor.shape).tolist()
        for name, tensor in request.inputs.items()
        if name in ("START", "CORRID", "past")
    }


def report(scene, outcome):
    batch = scene.instance.running[0]
    batch.is_rescheduled = outcome.is_rescheduled
    scene.instance.report(batch, [outcome])
    scene.loop.run()


def start(scene, **sequence):
    return scene(iterative=True, max_batch_size=8, sequence=SequenceSpec(**sequence))


def test_each_execution_has_its_controls(scene):
    one = start(scene, controls=CONTROLS)
    (submitted,) = one.submit(rows=1)
    seen = [values(submitted.request)]
    report(one, Outcome(0, is_rescheduled=True))
    seen.append(values(submitted.request))

    assert seen == [{"START": [[1]], "CORRID": [[1]]}, {"START": [[0]], "CORRID": [[1]]}]
    one.instance.finish()
    one.check_all_answered(repeated_executions=1)


def test_each_row_has_its_controls(scene):
    one = start(scene, controls=CONTROLS)
    (submitted,) = one.submit(rows=2)
    seen = [values(submitted.request)]
    report(one, Outcome(0, is_rescheduled=True))
    seen.append(values(submitted.request))

    assert seen[0] == {"START": [[1], [1]], "CORRID": [[1], [1]]}
    assert seen[1] == {"START": [[0], [0]], "CORRID": [[1], [1]]}


def test_states_of_a_response_are_inputs_of_the_next_execution(scene):
    one = start(scene, states=(STATE,))
    (submitted,) = one.submit(rows=1)
    seen = [values(submitted.request)]
    keys = [submitted.request.batch_key]
    state = InferTensor("next", INT32, (1, 2), np.array([4, 5], np.int32).tobytes())
    answer = InferTensor("y", FP32, (1, 1), bytes(4))
    report(one, Outcome(0, InferResponse("m", "1", "", [answer, state]), is_final=False))
    report(one, Outcome(0, is_rescheduled=True))
    seen.append(values(submitted.request))
    keys.append(submitted.request.batch_key)

    assert seen == [{"past": [[]]}, {"past": [[4, 5]]}]
    assert keys[0] != keys[1]
    assert [output.name for response in one.sink(0).responses for output in response.outputs] == [
        "y"
    ]


def test_a_wrong_state_is_an_error(scene):
    one = start(scene, states=(STATE,))
    one.submit(rows=1)
    state = InferTensor("next", FP32, (1, 2), bytes(8))
    report(one, Outcome(0, InferResponse("m", "1", "", [state])))

    (error,) = one.sink(0).errors
    assert "has data-type 'FP32', expected 'INT32'" in error.message
