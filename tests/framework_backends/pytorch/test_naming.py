# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses

import pytest

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.runtime.framework_backends.pytorch.configuration import ConfiguredTensors, TensorEntry
from pytriton.runtime.framework_backends.pytorch.torchscript import (
    ForwardArgument,
    bind_inputs,
    bind_outputs,
)


def entries(*names):
    return tuple(TensorEntry(name, "TYPE_FP32") for name in names)


def tensors(inputs=("A",), outputs=("Y",), **more):
    plain = ConfiguredTensors("m", entries(*inputs), (), (), (), entries(*outputs), ())
    return dataclasses.replace(plain, **{key: entries(*names) for key, names in more.items()})


def arguments(*names, kind="TensorType"):
    return [ForwardArgument(name, kind, "Tensor") for name in names]


@pytest.mark.parametrize(
    "inputs, expected",
    [
        (("x", "y"), {"x": 0, "y": 1}),
        (("y", "x"), {"y": 1, "x": 0}),
        (("a__1", "b__0"), {"a__1": 1, "b__0": 0}),
        (("a__1", "b__"), {"a__1": 1, "b__": 0}),
        (("b", "a"), {"b": 0, "a": 1}),
        (("y", "other"), {"y": 0, "other": 1}),  # one that is no argument: all by order
        (("a__1", "b"), {"a__1": 0, "b": 1}),
    ],
)
def test_inputs_are_bound_by_argument_then_number_then_order(inputs, expected):
    binding = bind_inputs(tensors(inputs), arguments("x", "y"))

    assert binding.positions == expected
    assert binding.warning == ""


@pytest.mark.parametrize("name", ["a__b__0", "a__b", "a__0b", "a__-1", "a__²"])
def test_a_name_with_something_else_than_a_number_is_warned_of(name):
    binding = bind_inputs(tensors((name, "b__0")), arguments("x", "y"))

    assert binding.positions == {name: 0, "b__0": 1}
    assert f"'{name}' has no number after '__'" in binding.warning


def test_outputs_are_bound_by_number_or_order():
    assert bind_outputs(tensors(outputs=("a__1", "b__0"))).positions == {"a__1": 1, "b__0": 0}
    assert bind_outputs(tensors(outputs=("a__1", "b"))).positions == {"a__1": 0, "b": 1}
    assert "output 'a__x' has no number" in bind_outputs(tensors(outputs=("a__x",))).warning


def test_one_dictionary_takes_any_number_of_inputs():
    binding = bind_inputs(tensors(("a", "b", "c")), arguments("d", kind="DictType"))

    assert binding.takes_dictionary


@pytest.mark.parametrize(
    "given, error, text",
    [
        (
            arguments("x", "y", "z"),
            InvalidArgumentError,
            "unable to load model 'm', configuration expects 2 inputs, model provides 3",
        ),
        (
            [*arguments("x"), *arguments("y", kind="DictType")],
            InternalError,
            (
                "Multiple inputs of kind DictType were detected. Only a single input of type"
                " Dict(str, Tensor) or input(s) of type Tensor are supported."
            ),
        ),
        (
            [ForwardArgument("x", "DictType", "Dict(str, Tensor)"), *arguments("y")],
            InternalError,
            (
                "An input of type 'Dict(str, Tensor)' was detected in the model. Only a single"
                " input of type Dict(str, Tensor) or input(s) of type Tensor are supported."
            ),
        ),
        (
            [*arguments("x"), ForwardArgument("n", "IntType", "int")],
            InternalError,
            (
                "An input of type 'int' was detected in the model. Only a single input of type"
                " Dict(str, Tensor) or input(s) of type Tensor are supported."
            ),
        ),
    ],
)
def test_arguments_that_cannot_be_served_are_refused(given, error, text):
    with pytest.raises(error) as raised:
        bind_inputs(tensors(("a", "b")), given)

    assert str(raised.value) == text


@pytest.mark.parametrize(
    "inputs, text",
    [
        (("a__0", "b__2"), "input 'b__2' refers to argument 2, but the model has 2 arguments"),
        (("a__1", "b__1"), "inputs 'a__1' and 'b__1' both refer to argument 1"),
    ],
)
def test_numbers_are_checked(inputs, text):
    with pytest.raises(InvalidArgumentError, match=text):
        bind_inputs(tensors(inputs), arguments("x", "y"))


def test_batch_inputs_follow_the_inputs():
    by_order = bind_inputs(tensors(("A",), batch_inputs=("B",)), arguments("x", "y"))
    by_name = bind_inputs(tensors(("y",), batch_inputs=("x",)), arguments("x", "y"))
    by_number = bind_inputs(tensors(("a__1",), batch_inputs=("b__0",)), arguments("x", "y"))

    assert by_order.positions == {"A": 0, "B": 1}
    assert by_name.positions == {"y": 1, "x": 0}
    assert by_number.positions == {"a__1": 1, "b__0": 0}


def test_controls_always_have_numbers():
    binding = bind_inputs(tensors(("x",), controls=("START__1",)), arguments("x", "y"))

    assert binding.positions == {"x": 0, "START__1": 1}
    with pytest.raises(InternalError) as raised:
        bind_inputs(tensors(("x",), controls=("START",)), arguments("x", "y"))
    assert str(raised.value) == "input 'START' does not follow <name>__<index> naming convention."


def test_states_make_all_names_numbers():
    good = tensors(("a__0",), ("y__0",), state_inputs=("s__1",), state_outputs=("s__1",))
    for_inputs = tensors(("x",), ("y__0",), state_inputs=("s__1",), state_outputs=("s__1",))
    for_outputs = tensors(("a__0",), ("y",), state_inputs=("s__1",), state_outputs=("s__1",))
    for_state = tensors(("a__0",), ("y__0",), state_inputs=("s",), state_outputs=("s",))

    assert bind_inputs(good, arguments("x", "y")).positions == {"a__0": 0, "s__1": 1}
    assert bind_outputs(good).positions == {"y__0": 0, "s__1": 1}
    with pytest.raises(InvalidArgumentError, match="convention: the inputs do not"):
        bind_inputs(for_inputs, arguments("x", "y"))
    with pytest.raises(InvalidArgumentError, match="convention: the outputs do not"):
        bind_outputs(for_outputs)
    with pytest.raises(InvalidArgumentError, match="convention: state 's' do not"):
        bind_inputs(for_state, arguments("x", "y"))
