# SPDX-License-Identifier: Apache-2.0
"""Control inputs and states: what a model gets with each request of a sequence."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from pytriton.base import dtypes
from pytriton.base.dtypes import BYTES, FP32, INT32
from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.base.model_spec import ControlSpec, SequenceControlKind, SequenceSpec, StateSpec
from pytriton.runtime.transport.arena import Arena, block_bytes, find_block, give_up
from pytriton.serving.engine.sequence.sequence_inputs import (
    SequenceInputs,
    added_input_names,
    state_output_names,
)
from pytriton.serving.engine.validation import validate
from tests.fakes import infer_request
from tests.wire.specs import model_spec, tensor_spec


def spec_of(*controls, states=(), max_batch_size=4, outputs=()):
    spec = model_spec(
        tensor_spec("x", FP32, (1,), batched=max_batch_size > 0),
        name="m",
        outputs=outputs,
        max_batch_size=max_batch_size,
    )
    return structs.replace(spec, sequence=SequenceSpec(controls=controls, states=states))


def state(dims=(2,), dtype=INT32, name="state", **fields):
    fields.setdefault("initial_dims", tuple(1 if dim < 0 else dim for dim in dims))
    return StateSpec(
        input_name=f"{name}_in", output_name=f"{name}_out", dtype=dtype, dims=dims, **fields
    )


def flag(kind, dtype=INT32, pair=(0, 1)):
    return ControlSpec(name=kind.name, kind=kind, dtype=dtype, false_true=pair)


def correlation(dtype):
    return ControlSpec(name="CORRID", kind=SequenceControlKind.CORRID, dtype=dtype)


def make_request(correlation_id=5, outputs=None, shape=(1, 1)):
    tensor = InferTensor("x", FP32, shape, b"\1\2\3\4")
    return infer_request("m", {"x": tensor}, correlation_id=correlation_id, outputs=outputs)


def response(*tensors):
    return InferResponse("m", "1", "", list(tensors))


def values(tensor):
    if tensor.dtype is BYTES:
        return dtypes.decode_bytes(tensor.data)
    return np.frombuffer(tensor.data, tensor.dtype.numpy).tolist()


def added(inputs, states=None, request=None, *, is_start=False, is_end=False):
    """Returns the values of the inputs that were added to a request."""
    request = request or make_request()
    states = states or inputs.new_states()
    inputs.add(request, states, is_start=is_start, is_end=is_end)
    return {name: values(each) for name, each in request.inputs.items() if name != "x"}


@pytest.mark.parametrize(
    "dtype,pair", [(INT32, (3, 9)), (FP32, (0.25, 1.5)), (dtypes.BOOL, (True, False))]
)
@pytest.mark.parametrize("is_start", [False, True])
@pytest.mark.parametrize("is_end", [False, True])
def test_flags_have_the_configured_values(dtype, pair, is_start, is_end):
    kinds = (SequenceControlKind.START, SequenceControlKind.END, SequenceControlKind.READY)
    inputs = SequenceInputs(spec_of(*(flag(kind, dtype, pair) for kind in kinds)))

    assert added(inputs, is_start=is_start, is_end=is_end) == {
        "START": [pair[is_start]],
        "END": [pair[is_end]],
        "READY": [pair[1]],
    }


@pytest.mark.parametrize("max_batch_size,shape", [(4, (1, 1)), (0, (1,))])
def test_controls_have_one_element(max_batch_size, shape):
    controls = (flag(SequenceControlKind.START), correlation(dtypes.UINT64))
    inputs = SequenceInputs(spec_of(*controls, max_batch_size=max_batch_size))
    request = make_request(shape=shape)
    inputs.add(request, inputs.new_states(), is_start=True, is_end=False)

    assert {request.inputs[name].shape for name in ("START", "CORRID")} == {shape}


@pytest.mark.parametrize(
    "dtype,given,expected",
    [
        (dtypes.UINT64, 5, 5),
        (dtypes.INT64, 2**63 + 5, -(2**63) + 5),
        (dtypes.UINT64, 2**63 + 5, 2**63 + 5),
        (dtypes.UINT32, 2**40 + 7, 7),
        (dtypes.INT32, 7, 7),
        (BYTES, "abc", b"abc"),
        (BYTES, "ä", "ä".encode()),
    ],
)
def test_correlation_ids_have_the_configured_type(dtype, given, expected):
    inputs = SequenceInputs(spec_of(correlation(dtype)))

    assert added(inputs, request=make_request(given)) == {"CORRID": [expected]}


def test_the_id_of_a_sequence_is_made_once():
    inputs = SequenceInputs(spec_of(correlation(dtypes.UINT64)))
    states = inputs.new_states()
    tensors = []
    for is_start in (True, False, False):
        request = make_request()
        inputs.add(request, states, is_start=is_start, is_end=False)
        tensors.append(request.inputs["CORRID"])

    assert tensors[0] is tensors[1] is tensors[2]


@pytest.mark.parametrize(
    "dtype,given,problem",
    [
        (dtypes.UINT64, "abc", "'BYTES', but model 'm' expects 'UINT64'"),
        (dtypes.INT32, "abc", "'BYTES', but model 'm' expects 'INT32'"),
        (BYTES, 7, "'UINT64', but model 'm' expects 'BYTES'"),
    ],
)
def test_an_id_of_another_type_is_refused(dtype, given, problem):
    with pytest.raises(InvalidArgumentError) as caught:
        validate(make_request(given), spec_of(correlation(dtype)))

    assert caught.value.message == (
        f"[request id: <id_unknown>] sequence batching control 'CORRID' data-type is {problem}"
    )


@pytest.mark.parametrize("dtype,given", [(BYTES, 0), (dtypes.UINT64, ""), (BYTES, "abc")])
def test_an_id_that_is_missing_or_fits_passes_validation(dtype, given):
    # The check raises for what it refuses.
    validate(make_request(given), spec_of(correlation(dtype)))


@pytest.mark.parametrize(
    "setting,first",
    [
        (state(), [0, 0]),
        (state(dtype=BYTES), [b"", b""]),
        (state(initial=np.array([7, 8], np.int32).tobytes()), [7, 8]),
        (state(dims=(-1,), initial_dims=(0,)), []),
    ],
)
def test_the_first_request_gets_the_initial_state(setting, first):
    inputs = SequenceInputs(spec_of(states=(setting,)))

    assert added(inputs, is_start=True) == {"state_in": first}


def out(*numbers, name="state_out", dtype=INT32, shape=None):
    data = np.array(numbers, dtype.numpy).tobytes()
    return InferTensor(name, dtype, (1, len(numbers)) if shape is None else shape, data)


def test_a_state_output_is_the_input_of_the_next_request():
    inputs = SequenceInputs(spec_of(states=(state(),)))
    states = inputs.new_states()
    added(inputs, states, is_start=True)
    answer = response(out(4, 5), out(1, name="y"))
    inputs.take(states, answer)

    assert [output.name for output in answer.outputs] == ["y"]
    assert added(inputs, states) == {"state_in": [4, 5]}


def test_a_start_sets_states_back():
    inputs = SequenceInputs(spec_of(states=(state(),)))
    states = inputs.new_states()
    added(inputs, states, is_start=True)
    inputs.take(states, response(out(4, 5)))

    assert added(inputs, states, is_start=True) == {"state_in": [0, 0]}
    assert added(inputs, inputs.new_states(), is_start=True) == {"state_in": [0, 0]}


def test_a_state_that_a_response_omits_stays():
    inputs = SequenceInputs(spec_of(states=(state(), state(name="other"))))
    states = inputs.new_states()
    added(inputs, states, is_start=True)
    inputs.take(states, response(out(4, 5)))
    inputs.take(states, response(out(6, 7, name="other_out")))

    assert added(inputs, states) == {"state_in": [4, 5], "other_in": [6, 7]}


@pytest.mark.parametrize(
    "wanted,names", [(None, ["state_out"]), (("state_out",), ["state_out"]), (("y",), [])]
)
def test_clients_get_states_that_are_outputs_too(wanted, names):
    inputs = SequenceInputs(spec_of(states=(state(),), outputs=("state_out",)))
    states = inputs.new_states()
    added(inputs, states, make_request(outputs=wanted), is_start=True)
    answer = response(out(4, 5))
    inputs.take(states, answer)

    assert [each.name for each in answer.outputs] == names
    assert added(inputs, states) == {"state_in": [4, 5]}


@pytest.mark.parametrize(
    "output,problem",
    [
        (out(1, 2, dtype=FP32), "has data-type 'FP32', expected 'INT32'"),
        (out(1, 2, 3), "has shape [1, 3], expected [1, 2]"),
        (out(1, 2, shape=(2,)), "has shape [2], expected [1, 2]"),
        (out(1, shape=()), "has shape [], expected [1, 2]"),
        (out(1, 2, 3, 4, shape=(2, 2)), "has shape [2, 2], expected [1, 2]"),
    ],
)
def test_a_state_of_another_type_or_shape_is_refused(output, problem):
    inputs = SequenceInputs(spec_of(states=(state(),)))
    states = inputs.new_states()
    added(inputs, states, is_start=True)
    with pytest.raises(InternalError) as caught:
        inputs.take(states, response(output))

    assert caught.value.message == f"state 'state_out' of model 'm' {problem}"
    assert added(inputs, states) == {"state_in": [0, 0]}


def test_states_may_grow_and_only_equal_shapes_share_a_batch():
    inputs = SequenceInputs(spec_of(states=(state(dims=(-1,)), state(name="fixed"))))
    first, second = inputs.new_states(), inputs.new_states()
    keys = [first.key == second.key]
    added(inputs, first, is_start=True)
    inputs.take(first, response(out(1, 2, 3)))
    keys.append(first.key == second.key)

    assert keys == [True, False]
    assert added(inputs, first)["state_in"] == [1, 2, 3]
    added(inputs, first, is_start=True)
    assert first.key == second.key


def test_a_large_state_is_not_copied_and_a_small_one_does_not_keep_its_message():
    inputs = SequenceInputs(spec_of(states=(state(dims=(-1,)),)))
    states = inputs.new_states()
    small, large = memoryview(bytearray(8)), memoryview(bytearray(1 << 20))
    added(inputs, states, is_start=True)
    inputs.take(states, response(InferTensor("state_out", INT32, (1, 2), small)))
    kept = [states.tensors["state_in"].data]
    inputs.take(states, response(InferTensor("state_out", INT32, (1, 1 << 18), large)))
    kept.append(states.tensors["state_in"].data)

    assert isinstance(kept[0], bytes)
    assert kept[1] is large


def test_memory_of_a_state_is_not_given_to_those_who_get_it_as_an_output():
    count = 1 << 18
    inputs = SequenceInputs(spec_of(states=(state((count,)),), outputs=("state_out",)))
    states = inputs.new_states()
    memory = block_bytes(Arena().allocate(4 * count))
    answer = response(InferTensor("state_out", INT32, (1, count), memory.data))
    inputs.take(states, answer)
    give_up(answer.outputs[0].data)  # as an ensemble does for its next step
    found = find_block(states.tensors["state_in"].data)

    assert found is not None
    assert not found[0].is_unshared


def test_a_null_request_has_zeros_and_is_not_ready():
    kinds = (SequenceControlKind.START, SequenceControlKind.END, SequenceControlKind.READY)
    controls = [flag(kind, pair=(2, 3)) for kind in kinds]
    inputs = SequenceInputs(spec_of(*controls, correlation(BYTES), states=(state(dims=(-1,)),)))
    states = inputs.new_states()
    added(inputs, states, is_start=True)
    inputs.take(states, response(out(1, 2, 3)))
    like = make_request("abc", outputs=("y",))
    inputs.add(like, states, is_start=True, is_end=True)
    null = inputs.null_request(like)

    assert {name: values(each) for name, each in null.inputs.items()} == {
        "x": [0.0],
        "START": [2],
        "END": [2],
        "READY": [2],
        "CORRID": [b""],
        "state_in": [0],
    }
    assert {name: each.shape for name, each in null.inputs.items()} == {
        name: each.shape for name, each in like.inputs.items()
    }
    assert (null.fields.correlation_id, null.fields.flags, null.fields.id) == (0, 0, "")
    assert (null.outputs, null.rows, null.batch_key) == (like.outputs, like.rows, like.batch_key)


def test_null_requests_of_one_shape_share_their_tensors():
    inputs = SequenceInputs(spec_of())
    first = inputs.null_request(make_request())
    second = inputs.null_request(make_request())
    other = InferTensor("x", FP32, (1, 2), bytes(8))

    assert first.inputs["x"] is second.inputs["x"]
    assert inputs.null_request(infer_request("m", {"x": other})).inputs["x"].shape == (1, 2)


def test_names_of_added_inputs_and_states_are_known():
    spec = spec_of(flag(SequenceControlKind.START), correlation(dtypes.INT64), states=(state(),))

    assert added_input_names(spec) == ["START", "CORRID", "state_in"]
    assert SequenceInputs(spec).names == ["START", "CORRID", "state_in"]
    assert state_output_names(spec) == ["state_out"]
    assert added_input_names(model_spec()) == state_output_names(model_spec()) == []
