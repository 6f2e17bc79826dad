# SPDX-License-Identifier: Apache-2.0
"""What users of the Python API catch, and the one error that a model raises to stop its server.

Errors that a server answers a request with live in `pytriton.errors`.
"""

from __future__ import annotations


class PyTritonError(Exception):
    """Base of the errors that the binding API raises.

    Args:
        message: what was expected and what came.
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
    """An argument, a configuration or what a callable returned is not valid."""


class PyTritonInvalidOperationError(PyTritonError):
    """The operation is not possible in the present state, as binding one model twice."""


class PyTritonBadParameterError(PyTritonError):
    """A value of a model's configuration or of a decorator is out of range or of a wrong kind."""


class PyTritonModelConfigError(PyTritonError):
    """A model configuration received from a server cannot be read."""


class PyTritonUnrecoverableError(PyTritonError):
    """Raised by an inference callable when no further inference is possible: the server stops."""


class PyTritonRuntimeError(PyTritonError):
    """A decorator met data or an order of decorators that it cannot work with."""
