# SPDX-License-Identifier: Apache-2.0
"""Outputs that a callable returned under other names than declared, or not at all."""

import numpy as np
import pytest

from pytriton.proxy.types import Request
from pytriton.runtime.functions.output_validation import OutputNames

ONE, TWO, THREE = (np.full((1, 1), value, np.float32) for value in (1, 2, 3))
MISSING = r"Not all outputs of model `m` were returned: \['sub'\] is missing\. "


def names(*declared, unnamed=(), **rules):
    return OutputNames("m", declared, unnamed, **rules)


def test_outputs_without_names_take_the_values_in_order_with_one_warning(caplog):
    unnamed = names("OUTPUT_1", "OUTPUT_2", unnamed=["OUTPUT_1", "OUTPUT_2"])

    for _ in range(3):
        outputs = unnamed.assign({"sub": ONE, "add": TWO})

    assert outputs == {"OUTPUT_1": ONE, "OUTPUT_2": TWO}
    (warning,) = caplog.messages
    assert "['sub', 'add'] were taken in order for ['OUTPUT_1', 'OUTPUT_2']" in warning


def test_only_outputs_without_a_name_take_values_in_order(caplog):
    mixed = names("OUTPUT_1", "add", "OUTPUT_3", unnamed=["OUTPUT_1", "OUTPUT_3"])

    assert mixed.assign({"add": ONE, "x": TWO, "y": THREE}) == {
        "add": ONE,
        "OUTPUT_1": TWO,
        "OUTPUT_3": THREE,
    }
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    "outputs",
    [{"add": ONE}, {"add": ONE, "sbu": TWO}, {"add": ONE, "x": TWO, "y": THREE}],
    ids=["missing", "misspelt", "too many"],
)
def test_missing_output_with_a_name_is_refused_with_all_names(outputs):
    with pytest.raises(ValueError, match=MISSING) as refusal:
        names("add", "sub").assign(outputs)

    assert str(refusal.value).endswith(f"Returned: {list(outputs)}. Expected: ['add', 'sub'].")


@pytest.mark.parametrize("outputs", [{}, {"x": ONE}, {"x": ONE, "y": TWO, "z": THREE}])
def test_another_number_of_values_than_unnamed_outputs_is_refused(outputs):
    unnamed = names("OUTPUT_1", "OUTPUT_2", unnamed=["OUTPUT_1", "OUTPUT_2"])

    with pytest.raises(ValueError, match=r"\['OUTPUT_1', 'OUTPUT_2'\] are missing"):
        unnamed.assign(outputs)


def test_output_that_the_client_did_not_ask_for_may_be_missing():
    outputs = {"add": ONE}

    assert names("add", "sub").assign(outputs, wanted=["add"]) is outputs
    with pytest.raises(ValueError, match=MISSING):
        names("add", "sub").assign(outputs, wanted=["sub"])


def test_undeclared_outputs_beside_all_declared_ones_are_let_through(caplog):
    outputs = {"add": ONE, "sub": TWO, "more": THREE}

    assert names("add", "sub").assign(outputs) is outputs
    assert caplog.messages == []


def test_strict_names_are_never_guessed():
    outputs = {"x": ONE}

    assert names("OUTPUT_1", unnamed=["OUTPUT_1"], strict=True).assign(outputs) is outputs
    with pytest.raises(ValueError, match=MISSING):
        names("add", "sub", strict=True).assign({"add": ONE})


def test_response_of_a_stream_may_leave_outputs_out_with_one_warning(caplog):
    stream = names("add", "sub", decoupled=True)

    for outputs in ({"add": ONE}, {"sub": ONE}, {}):
        assert stream.assign(outputs) is outputs
    (warning,) = caplog.messages
    assert "omits ['sub']" in warning


def test_misspelt_output_in_a_stream_is_refused():
    with pytest.raises(ValueError, match=MISSING):
        names("add", "sub", decoupled=True).assign({"add": ONE, "sbu": TWO})


def test_request_that_came_back_gives_its_inputs_in_order_without_a_warning(caplog):
    echo = names("x", "y").assign(Request({"a": ONE, "b": TWO}))

    assert echo == {"x": ONE, "y": TWO}
    assert caplog.messages == []
