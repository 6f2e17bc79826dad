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


@pytest.mark.parametrize("kind", [list, tuple])
def test_response_has_a_list_of_its_own(kind):
    tensors = [TENSOR]
    response = InferenceResponse(output_tensors=kind(tensors))
    tensors.clear()
    response.output_tensors().clear()

    assert response.output_tensors() == [TENSOR]


def test_response_with_an_error_has_it():
    error = TritonError("broken")
    response = InferenceResponse([TENSOR], error)

    assert response.has_error()
    assert response.error() is error


EMPTY = r"^Output tensor for inference response should not be empty\.$"
KEYS = "^Expect parameters keys to have type str, found type <class 'int'>$"
VALUES = "^Expect parameters values to have type bool/int/str, found type <class 'float'>$"
WRONG = [
    *(((tensors,), TypeError, "output_tensors must") for tensors in (None, "ab", 5, [1], ["OUT"])),
    (([], "broken"), TypeError, "error must be a TritonError"),
    (([TENSOR, None],), TritonModelException, EMPTY),
    (([], None, [1]), TritonModelException, "got <class 'list'>$"),
    (([], None, {1: 2}), TritonModelException, KEYS),
    (([], None, {"a": 2.0}), TritonModelException, VALUES),
    (([], None, {"a": None}), TritonModelException, "found type <class 'NoneType'>$"),
    (([], None, {"a": 1 << 63}), TritonModelException, "'a' must fit in 64 bits"),
]


@pytest.mark.parametrize("arguments, kind, text", WRONG, ids=str)
def test_wrong_argument_is_refused(arguments, kind, text):
    with pytest.raises(kind, match=text):
        InferenceResponse(*arguments)


def test_parameters_are_given_as_json():
    response = InferenceResponse([], parameters={"a": 1, "b": True, "c": "x y"})

    assert json.loads(response.parameters()) == {"a": 1, "b": True, "c": "x y"}


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
