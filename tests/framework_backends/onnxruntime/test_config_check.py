# SPDX-License-Identifier: Apache-2.0
"""Whether a configuration fits a model, and the words if it does not."""

from __future__ import annotations

import pytest

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.runtime.framework_backends.onnxruntime.configuration import (
    OnnxSignature,
    TensorInfo,
    check_config,
)


def info(name, shape, data_type="TYPE_FP32"):
    return TensorInfo(name, data_type, tuple(shape))


def signature(inputs, outputs, initializers=()):
    return OnnxSignature(
        *({each.name: each for each in group} for group in (inputs, initializers, outputs))
    )


def entry(name, dims, data_type="TYPE_FP32", **fields):
    return {"name": name, "dims": list(dims), "data_type": data_type, **fields}


def config(inputs=(), outputs=(), max_batch_size=0, **fields):
    return {
        "name": "m",
        "max_batch_size": max_batch_size,
        "input": list(inputs),
        "output": list(outputs),
        **fields,
    }


def refusal(checked, model, error=InvalidArgumentError):
    with pytest.raises(error) as caught:
        check_config(checked, model)
    return caught.value.message


X, Y = info("x", [-1, 3]), info("y", [-1, 2])
ONE = signature([X], [Y, info("z", [-1])])
CORRID = {"kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_UINT64"}
START = {"kind": "CONTROL_SEQUENCE_START", "fp32_false_true": [0, 1], "int32_false_true": []}


def sequences(*controls, states=()):
    return {
        "control_input": [{"name": name, "control": [control]} for name, control in controls],
        "state": list(states),
    }


@pytest.mark.parametrize(
    "checked",
    [
        config([entry("x", [-1, 3])], [entry("y", [-1, 2])]),
        config([entry("x", [5, 3])], [entry("y", [-1, 2])]),
        config([entry("x", [3])], [entry("y", [2])], 8),
        config([entry("x", [3])], [entry("y", [2]), entry("z", [1], reshape={"shape": []})], 8),
        config([entry("x", [1, 3], reshape={"shape": [3]})], [entry("y", [2])], 8),
        config([entry("x", [3])], [], 8),
    ],
)
def test_configuration_that_fits_is_accepted(checked):
    # The check raises for what it refuses.
    check_config(checked, ONE)


@pytest.mark.parametrize(
    "checked, expected, provided",
    [
        (config([], [entry("y", [-1, 2])]), 0, 1),
        (config([entry("x", [-1, 3]), entry("w", [1])], []), 2, 1),
        (config([entry("x", [-1, 3], optional=True)], []), 0, 1),
    ],
)
def test_number_of_inputs_must_be_that_of_the_model(checked, expected, provided):
    assert refusal(checked, ONE) == (
        f"unable to load model 'm', configuration expects {expected} inputs, model provides"
        f" {provided}"
    )


def test_every_input_that_the_server_adds_counts():
    model = signature(
        [X, info("start", [-1, 1]), info("state", [-1, 4]), info("counts", [-1])],
        [Y, info("next", [-1, 4])],
    )
    state = {"input_name": "state", "output_name": "next", "data_type": "TYPE_FP32"}
    counts = {"target_name": ["counts"], "data_type": "TYPE_FP32", "source_input": ["x"]}
    fields = {"sequence_batching": sequences(("start", START), states=[state])}
    check_config(
        config([entry("x", [3])], [entry("y", [2])], 4, batch_input=[counts], **fields), model
    )

    assert "configuration expects 3 inputs, model provides 4" in refusal(
        config([entry("x", [3])], [entry("y", [2])], 4, **fields), model
    )


def test_unknown_names_are_answered_with_the_known_ones():
    model = signature([X], [Y, info("a", [1])], [info("w", [1])])

    assert refusal(config([entry("q", [-1, 3])]), model) == (
        "unexpected inference input 'q', allowed inputs are: w, x"
    )
    assert refusal(config([entry("x", [-1, 3])], [entry("q", [1])]), model) == (
        "unexpected inference output 'q', allowed outputs are: a, y"
    )


def test_datatypes_must_be_those_of_the_model():
    assert refusal(config([entry("x", [-1, 3], "TYPE_INT32")]), ONE) == (
        "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'x', model"
        " provides TYPE_FP32"
    )
    assert refusal(config([entry("x", [-1, 3])], [entry("y", [-1, 2], "TYPE_FP16")]), ONE) == (
        "unable to load model 'm', configuration expects datatype TYPE_FP16 for output 'y', model"
        " provides TYPE_FP32"
    )


def test_datatype_that_the_backend_does_not_have_is_refused():
    checked = config([entry("x", [-1, 3], "TYPE_INVALID")])

    assert refusal(checked, ONE, InternalError) == (
        "unsupported datatype TYPE_INVALID for input 'x' for model 'm'"
    )


@pytest.mark.parametrize("shape, text", [((), "[]"), ((1, 3), "[1,3]")])
def test_batching_needs_a_first_dimension_that_varies(shape, text):
    model = signature([info("x", shape)], [Y])

    assert refusal(config([entry("x", [3])], max_batch_size=8), model) == (
        "model 'm', tensor 'x': for the model to support batching the shape should have at least 1"
        " dimension and the first dimension must be -1; but shape expected by the model is"
        f" {text}"
    )


@pytest.mark.parametrize(
    "dims, text",
    [((-1, -1), "2 dimensions (shape [-1,-1])"), ((3,), "1 dimensions (shape [3])")],
)
def test_input_must_have_the_sizes_that_the_model_fixes(dims, text):
    assert refusal(config([entry("x", dims)]), ONE) == (
        "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,3]) but the model"
        f" configuration specifies {text}"
    )


@pytest.mark.parametrize("dims", [(5, 2), (-1, -1), (-1, 3)])
def test_output_must_have_exactly_the_shape_of_the_model(dims):
    text = ",".join(map(str, dims))
    assert refusal(config([entry("x", [-1, 3])], [entry("y", dims)]), ONE) == (
        "model 'm', tensor 'y': the model expects 2 dimensions (shape [-1,2]) but the model"
        f" configuration specifies 2 dimensions (shape [{text}])"
    )


def test_shapes_with_batching_say_where_the_first_dimension_comes_from():
    assert refusal(config([entry("x", [-1, 3])], max_batch_size=8), ONE) == (
        "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,3]) but the model"
        " configuration specifies 3 dimensions (an initial batch dimension because max_batch_size"
        " > 0 followed by the explicit tensor shape, making complete shape [-1,-1,3])"
    )


def test_scalars_have_only_ones_in_the_configuration():
    model = signature([info("x", [])], [info("y", [])])
    check_config(config([entry("x", [1])], [entry("y", [1, 1])]), model)

    assert refusal(config([entry("x", [1, 2])]), model) == (
        "unable to load model 'm', scalar tensor 'x', should only provide 1 in the model"
        " configuration when the model doesn't support batching. Model configuration provided:"
        " [1,2]"
    )


def test_optional_inputs_are_initializers_of_models_without_batching():
    model = signature([X], [Y], [info("w", [1])])
    inputs = [entry("x", [-1, 3]), entry("w", [1], optional=True)]
    check_config(config(inputs, [entry("y", [-1, 2])]), model)

    batched = [entry("x", [3]), entry("w", [1], optional=True)]
    assert refusal(config(batched, [entry("y", [2])], 4), model) == (
        "optional input 'w' is not supported for models that support batching"
    )


def test_ragged_input_is_a_vector_in_the_model():
    flat = signature([info("x", [-1])], [Y])
    ragged = entry("x", [-1], allow_ragged_batch=True)
    check_config(config([ragged], [entry("y", [2])], 4), flat)

    assert refusal(config([ragged], [entry("y", [2])], 4), ONE) == (
        "model 'm', tensor 'x': for the model to support ragged input, the shape expected by the"
        " model must be [-1]; but it is [-1,3]"
    )


def test_shape_of_a_batch_output_is_not_compared():
    scattered = [{"target_name": ["y"], "source_input": ["x"]}]
    fields = {"max_batch_size": 4, "batch_output": scattered}

    # The check raises for what it refuses.
    check_config(config([entry("x", [3])], [entry("y", [-1, -1, -1])], **fields), ONE)


@pytest.mark.parametrize(
    "name, control, data_type, wanted",
    [
        ("start", START, "TYPE_FP32", None),
        ("id", CORRID, "TYPE_UINT64", None),
        ("start", START, "TYPE_INT32", "TYPE_FP32"),
        ("id", CORRID, "TYPE_INT32", "TYPE_UINT64"),
    ],
)
def test_control_inputs_have_the_type_of_the_model(name, control, data_type, wanted):
    model = signature([X, info(name, [-1, 1], data_type)], [Y])
    checked = config([entry("x", [3])], [], 4, sequence_batching=sequences((name, control)))
    if wanted is None:
        check_config(checked, model)
    else:
        assert refusal(checked, model) == (
            f"unable to load model 'm', sequence control '{name}', the model expects data-type"
            f" {data_type} but the model configuration specifies data-type {wanted}"
        )


def test_control_input_has_one_element():
    model = signature([X, info("start", [-1, 2])], [Y])
    checked = config([entry("x", [3])], [], 4, sequence_batching=sequences(("start", START)))

    assert refusal(checked, model) == (
        "unable to load model 'm', sequence control 'start' in model has dims [2] but dims [1] is"
        " expected"
    )


def test_control_input_must_be_there():
    checked = config([entry("x", [3])], [], 4, sequence_batching=sequences(("start", START)))

    assert refusal(checked, ONE, InternalError) == (
        "configuration specified sequence control 'start', but model does not provide that input"
    )


def test_output_of_a_state_must_be_there():
    state = {"input_name": "state", "output_name": "next", "data_type": "TYPE_FP32"}
    model = signature([X, info("state", [-1, 4])], [Y])
    checked = config([entry("x", [3])], [], 4, sequence_batching=sequences(states=[state]))

    assert refusal(checked, model) == ("unexpected inference output 'next', allowed outputs are: y")
