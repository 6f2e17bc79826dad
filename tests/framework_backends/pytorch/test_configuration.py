# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.runtime.framework_backends.pytorch.configuration import (
    TORCH_NAMES,
    check_types,
    read_tensors,
)

X = {"name": "X", "data_type": "TYPE_FP32", "dims": [4]}
Y = {"name": "Y", "data_type": "TYPE_FP32", "dims": [4]}
STRINGS = {"name": "S", "data_type": "TYPE_STRING", "dims": [1]}
FLAT = {"reshape": {"shape": []}}


def config(inputs=(X,), outputs=(Y,), **members):
    return {"name": "m", "input": list(inputs), "output": list(outputs), **members}


@pytest.mark.parametrize(
    "document, text",
    [
        (
            config(inputs=()),
            "model configuration must contain at least one input, none were specified.",
        ),
        (
            config(outputs=()),
            "model configuration must contain at least one output, none were specified.",
        ),
    ],
)
def test_tensors_have_to_be_there(document, text):
    with pytest.raises(InternalError) as raised:
        read_tensors(document)

    assert str(raised.value) == text


def test_optional_inputs_are_refused():
    with pytest.raises(InvalidArgumentError) as raised:
        read_tensors(config(inputs=[{**X, "optional": True}]))

    assert str(raised.value) == (
        "'optional' is set to true for input 'X' while the backend model doesn't support optional"
        " input"
    )


def test_every_numeric_type_is_taken():
    entries = [{**X, "data_type": name} for name in TORCH_NAMES]

    # The check raises for what it refuses.
    check_types(read_tensors(config(inputs=entries, outputs=entries)), takes_strings=False)


@pytest.mark.parametrize(
    "entry, batch_size",
    [(STRINGS, 0), ({**STRINGS, **FLAT}, 8)],
)
def test_strings_with_one_dimension_are_taken(entry, batch_size):
    document = config(inputs=[entry], outputs=[entry], max_batch_size=batch_size)

    # The check raises for what it refuses.
    check_types(read_tensors(document), takes_strings=True)


@pytest.mark.parametrize(
    "entry, batch_size",
    [(STRINGS, 8), ({**STRINGS, "dims": [2, 2]}, 0), ({**STRINGS, **FLAT}, 0)],
)
@pytest.mark.parametrize("kind", ["input", "output"])
def test_strings_with_another_rank_are_refused(entry, batch_size, kind):
    document = config(**{f"{kind}s": [entry]}, max_batch_size=batch_size)

    with pytest.raises(InternalError) as raised:
        check_types(read_tensors(document), takes_strings=True)

    assert str(raised.value) == (
        f"Triton only supports 1 dimensional List of String as {kind} for 'S' for model 'm'"
    )


def test_forms_without_strings_refuse_them():
    with pytest.raises(InternalError) as raised:
        check_types(read_tensors(config(inputs=[STRINGS])), takes_strings=False)

    assert str(raised.value) == "unsupported datatype TYPE_STRING for input 'S' for model 'm'"


def sequence(control):
    return config(sequence_batching={"control_input": [{"name": "C", "control": [control]}]})


@pytest.mark.parametrize(
    "control, expected",
    [
        ({"kind": "CONTROL_SEQUENCE_START", "fp32_false_true": [0, 1]}, "TYPE_FP32"),
        ({"kind": "CONTROL_SEQUENCE_READY", "bool_false_true": [False, True]}, "TYPE_BOOL"),
        ({"kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_UINT64"}, "TYPE_UINT64"),
    ],
)
def test_controls_have_the_type_of_their_values(control, expected):
    tensors = read_tensors(sequence(control))

    check_types(tensors, takes_strings=True)
    assert tensors.controls[0].data_type == expected


def test_correlation_ids_of_strings_are_refused():
    control = {"kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_STRING"}

    with pytest.raises(InternalError) as raised:
        check_types(read_tensors(sequence(control)), takes_strings=True)

    assert str(raised.value) == "input 'C' type 'TYPE_STRING' is not supported by PyTorch."


def test_all_tensors_are_found():
    state = {"input_name": "S__1", "output_name": "Y", "data_type": "TYPE_FP32", "dims": [1]}
    other = {**state, "input_name": "T__2", "output_name": "U"}
    batch = {"target_name": ["B"], "data_type": "TYPE_INT32", "source_input": ["X"]}
    tensors = read_tensors(config(batch_input=[batch], sequence_batching={"state": [state, other]}))

    assert [entry.name for entry in tensors.all_inputs] == ["X", "B", "S__1", "T__2"]
    assert [entry.name for entry in tensors.all_outputs] == ["Y", "U"]
