# SPDX-License-Identifier: Apache-2.0
import pytest

from pytriton.base.errors import InternalError, NotFoundError
from pytriton.runtime.native_backend.callbacks import Callbacks
from pytriton.runtime.native_backend.server_objects import Errors

WITH_ERROR = "TRITONBACKEND_RequestInputCount"
WITHOUT_ERROR = "TRITONSERVER_ErrorCode"


def failing(error: BaseException):
    def function(*_):
        raise error

    return function


@pytest.fixture(name="errors")
def make_errors():
    return Errors()


def guarded(errors, name, error, report=lambda *_: None):
    return Callbacks({name: failing(error)}, errors, report).guarded(name)


def test_error_of_ours_is_returned_to_c(errors):
    handle = guarded(errors, WITH_ERROR, NotFoundError("no such input"))(1, 2)

    error = errors.take(handle)
    assert (type(error), error.message) == (NotFoundError, "no such input")


def test_unexpected_exception_is_reported_and_returned(errors):
    reported = []
    report = lambda name, error: reported.append((name, str(error)))  # noqa: E731
    handle = guarded(errors, WITH_ERROR, KeyError("x"), report)(1, 2)

    error = errors.take(handle)
    assert (type(error), error.message) == (InternalError, f"{WITH_ERROR} failed: KeyError: 'x'")
    assert reported == [(WITH_ERROR, "'x'")]


def test_failure_that_cannot_be_reported_is_still_an_error_for_c(errors):
    report = failing(ConnectionError("the server has ended"))
    handle = guarded(errors, WITH_ERROR, KeyError("x"), report)(1, 2)

    assert handle != 0
    assert isinstance(errors.take(handle), InternalError)


def test_function_without_an_error_leaves_none_behind(errors):
    assert guarded(errors, WITHOUT_ERROR, NotFoundError("no such error"))(1) == 0
    assert len(errors) == 0
