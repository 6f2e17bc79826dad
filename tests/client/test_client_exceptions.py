# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import warnings

import pytest

from pytriton.client import exceptions
from pytriton.client.warnings import NotSupportedTimeoutWarning, PyTritonWarning
from pytriton.exceptions import PyTritonError

ALL = [
    value
    for value in vars(exceptions).values()
    if isinstance(value, type) and issubclass(value, Exception)
]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_exception_carries_its_message(kind):
    error = kind("what came")

    assert (str(error), error.message) == ("what came", "what came")
    assert isinstance(error, exceptions.PyTritonClientError)
    assert not isinstance(error, PyTritonError)


def test_timeout_can_be_caught_as_python_s_own():
    assert issubclass(exceptions.PyTritonClientTimeoutError, TimeoutError)


def test_unavailable_model_can_be_caught_as_a_timeout():
    kind = exceptions.PyTritonClientModelUnavailableError

    assert issubclass(kind, exceptions.PyTritonClientTimeoutError)


def test_timeout_survives_a_copy():
    error = copy.copy(exceptions.PyTritonClientTimeoutError("late"))

    assert str(error) == "late"


def test_warning_of_limits_is_a_user_warning():
    with pytest.warns(UserWarning, match="no limit") as caught:
        warnings.warn("no limit", NotSupportedTimeoutWarning, stacklevel=1)

    assert issubclass(caught[0].category, PyTritonWarning)
