# SPDX-License-Identifier: Apache-2.0
"""The exceptions of the clients. Those of the server side are in `pytriton.exceptions`."""

from __future__ import annotations


class PyTritonClientError(Exception):
    """Base class of the clients' exceptions.

    Args:
        message: what was expected and what was received.
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
    """An input holds text or other objects, but the protocol needs bytes."""


class PyTritonClientInvalidUrlError(PyTritonClientValueError):
    """The address of the server is malformed."""


class PyTritonClientTimeoutError(PyTritonClientError, TimeoutError):
    """The server could not be reached, or did not answer, before the timeout."""


class PyTritonClientModelUnavailableError(PyTritonClientTimeoutError):
    """The server answers, but the model was not ready before the timeout."""


class PyTritonClientClosedError(PyTritonClientError):
    """The client was closed, or was created before this process was forked."""


class PyTritonClientModelDoesntSupportBatchingError(PyTritonClientError):
    """`infer_batch` was called for a model whose tensors have no batch dimension."""


class PyTritonClientInferenceServerError(PyTritonClientError):
    """The server answered a request with an error."""


class PyTritonClientQueueFullError(PyTritonClientError):
    """The queue of a `FuturesModelClient` is full."""
