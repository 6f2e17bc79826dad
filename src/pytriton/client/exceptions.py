# SPDX-License-Identifier: Apache-2.0
"""What the clients raise. What the serving side raises lives in `pytriton.exceptions`."""

from __future__ import annotations


class PyTritonClientError(Exception):
    """Base of everything that the clients raise on purpose.

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


class PyTritonClientValueError(PyTritonClientError):
    """An argument of a client's constructor or method is not valid."""


class PyTritonClientTextError(PyTritonClientValueError, RuntimeError):
    """An input holds text, or other objects, where the protocol has bytes."""


class PyTritonClientInvalidUrlError(PyTritonClientValueError):
    """The server's address cannot be read."""


class PyTritonClientTimeoutError(PyTritonClientError, TimeoutError):
    """The server could not be reached, or did not answer, within the time allowed."""


class PyTritonClientModelUnavailableError(PyTritonClientTimeoutError):
    """The server answers, but the model did not become ready within the time allowed."""


class PyTritonClientClosedError(PyTritonClientError):
    """The client was closed, or belongs to the process from which this one was forked."""


class PyTritonClientModelDoesntSupportBatchingError(PyTritonClientError):
    """`infer_batch` was called for a model whose tensors have no batch dimension."""


class PyTritonClientInferenceServerError(PyTritonClientError):
    """The server answered a request with an error."""


class PyTritonClientQueueFullError(PyTritonClientError):
    """`FuturesModelClient` has as many requests waiting as it may."""
