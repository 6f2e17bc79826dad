# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import numpy as np
import pytest
from triton_python_backend_utils import (
    InferenceResponse,
    Tensor,
    TritonError,
    TritonModelException,
)

TENSOR = Tensor("OUT", np.zeros(1))
CODES = ["UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED"]
CODES += ["ALREADY_EXISTS", "CANCELLED"]


def test_response_without_arguments_is_empty():
    response = InferenceResponse()

    assert response.output_tensors() == []
    assert not response.has_error()
    assert response.error() is None
    assert response.parameters() == "{}"


@pytest.mark.parametrize("tensors", [[TENSOR, TENSOR], (TENSOR, TENSOR)])
def test_response_takes_any_sequence_of_tensors(tensors):
    assert InferenceResponse(tensors).output_tensors() == [TENSOR, TENSOR]


def test_response_has_a_list_of_its_own():
    tensors = [TENSOR]
    response = InferenceResponse(output_tensors=tensors)
    tensors.clear()
    response.output_tensors().clear()

    assert response.output_tensors() == [TENSOR]


def test_response_with_an_error_has_it():
    error = TritonError("broken")
    response = InferenceResponse([TENSOR], error)

    assert response.has_error()
    assert response.error() is error


@pytest.mark.parametrize("tensors", [None, "ab", 5, [1], ["OUT"]])
def test_outputs_of_another_type_are_a_type_error(tensors):
    with pytest.raises(TypeError, match="output_tensors must"):
        InferenceResponse(tensors)


def test_output_of_none_is_refused():
    with pytest.raises(
        TritonModelException, match=r"^Output tensor for inference response should not be empty\.$"
    ):
        InferenceResponse([TENSOR, None])


def test_error_that_is_a_text_is_a_type_error():
    with pytest.raises(TypeError, match="error must be a TritonError"):
        InferenceResponse([], "broken")


def test_parameters_are_given_as_json():
    response = InferenceResponse([], parameters={"a": 1, "b": True, "c": "x y"})

    assert json.loads(response.parameters()) == {"a": 1, "b": True, "c": "x y"}


@pytest.mark.parametrize(
    "parameters, text",
    [
        ([1], "got <class 'list'>$"),
        ({1: 2}, "^Expect parameters keys to have type str, found type <class 'int'>$"),
        (
            {"a": 2.0},
            "^Expect parameters values to have type bool/int/str, found type <class 'float'>$",
        ),
        ({"a": None}, "found type <class 'NoneType'>$"),
        ({"a": 1 << 63}, "Unsupported value type on parameters: 'a' must fit in 64 bits"),
    ],
)
def test_parameters_that_cannot_travel_are_refused(parameters, text):
    with pytest.raises(TritonModelException, match=text):
        InferenceResponse([], parameters=parameters)


def test_received_response_is_taken_as_it_is():
    response = InferenceResponse.received([TENSOR], None, {"a": 1.5})

    assert response.output_tensors() == [TENSOR]
    assert json.loads(response.parameters()) == {"a": 1.5}


def test_response_shows_what_it_holds():
    assert repr(InferenceResponse([TENSOR])) == f"InferenceResponse([{TENSOR!r}])"
    assert "TritonError('no', TritonError.NOT_FOUND)" in repr(
        InferenceResponse(error=TritonError("no", TritonError.NOT_FOUND))
    )


def test_error_is_internal_unless_told_otherwise():
    error = TritonError("broken")

    assert error.message() == "broken"
    assert error.code() == TritonError.INTERNAL


@pytest.mark.parametrize("number, name", list(enumerate(CODES)))
def test_codes_have_tritons_numbers(number, name):
    code = getattr(TritonError, name)

    assert int(code) == number
    assert TritonError(message=b"x", code=code).code() == code


@pytest.mark.parametrize("arguments", [(5,), (None,), ("x", 3), ("x", None)])
def test_error_of_other_types_is_a_type_error(arguments):
    with pytest.raises(TypeError, match="must be"):
        TritonError(*arguments)
