# SPDX-License-Identifier: Apache-2.0
import pathlib

import pytest
import triton_python_backend_utils as pb_utils

from pytriton.testing import ModelHarness, Request

MODEL = pathlib.Path(__file__).parent / "model_repository" / "percent" / "1" / "model.py"


@pytest.fixture
def model():
    with ModelHarness(MODEL) as harness:
        yield harness


def test_part_is_given_in_percent_of_the_whole(model):
    response = model.execute({"PART": [[1], [3]], "WHOLE": [[4], [4]]})

    assert response["PERCENT"].tolist() == [[25], [75]]


def test_digits_are_a_parameter(model):
    response = model.execute({"PART": [[1]], "WHOLE": [[3]]}, parameters={"digits": 0})

    assert response["PERCENT"].tolist() == [[33]]


def test_whole_of_zero_fails_its_own_request_only(model):
    good = Request({"PART": [[1]], "WHOLE": [[2]]})
    bad = Request({"PART": [[1]], "WHOLE": [[0]]})

    (first,), (second,) = model.execute_batch([good, bad])

    assert first["PERCENT"].tolist() == [[50]]
    assert second.error.code() == pb_utils.TritonError.INVALID_ARG
    assert second.error.message() == "WHOLE must not be 0"


def test_more_than_the_whole_is_logged(model):
    model.execute({"PART": [[5]], "WHOLE": [[4]]})

    assert [line.message for line in model.logs] == ["a part is more than the whole"]
