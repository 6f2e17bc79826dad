# SPDX-License-Identifier: Apache-2.0
import pytest

from pytriton import exceptions

_ERRORS = [
    exceptions.PyTritonValidationError,
    exceptions.PyTritonInvalidOperationError,
    exceptions.PyTritonBadParameterError,
    exceptions.PyTritonModelConfigError,
    exceptions.PyTritonUnrecoverableError,
    exceptions.PyTritonRuntimeError,
]


@pytest.mark.parametrize("error", _ERRORS)
def test_error_shows_its_message(error):
    raised = error("what came")

    assert raised.__class__.__bases__ == (exceptions.PyTritonError,)
    assert (raised.message, str(raised), raised.args) == ("what came", "what came", ("what came",))


def test_error_needs_a_message():
    with pytest.raises(TypeError, match="message"):
        exceptions.PyTritonError()
