# SPDX-License-Identifier: Apache-2.0
"""The exceptions of the Python API, and the error that a model raises to stop its server.

The errors with which a server answers requests are in `pytriton.base.errors`.
"""

from __future__ import annotations


class PyTritonError(Exception):
    """Base class of the errors that the binding API raises.

    Args:
        message: the text, with the expected and the actual value.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self._message = message

    def __str__(self) -> str:
        return self._message

    @property
    def message(self) -> str:
        """The text given to the constructor."""
        return self._message


class PyTritonValidationError(PyTritonError):
    """An argument, a configuration or the result of a callable is not valid."""


class PyTritonInvalidOperationError(PyTritonError):
    """The operation is not possible in the current state, for example binding a model twice."""


class PyTritonBadParameterError(PyTritonError):
    """A value of a model's configuration or of a decorator is out of range or of a wrong type."""


class PyTritonModelConfigError(PyTritonError):
    """A model configuration received from a server cannot be read."""


class PyTritonUnrecoverableError(PyTritonError):
    """Raised by an inference callable when no further inference is possible: the server stops."""


class PyTritonRuntimeError(PyTritonError):
    """A decorator got data, or is used in an order, that it does not support."""
