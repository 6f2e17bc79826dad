# SPDX-License-Identifier: Apache-2.0
"""Converts exceptions of the official client into those of `pytriton.client.exceptions`."""

from __future__ import annotations

import asyncio
from typing import Any

from pytriton.client.exceptions import (
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
)

# If the server notices first that the deadline has passed, it cancels the call.
_DEADLINE_PASSED = ("StatusCode.DEADLINE_EXCEEDED", "StatusCode.CANCELLED")


def is_timeout(error: Any) -> bool:
    """Whether an error of the official client or of its connection means a timeout."""
    status = getattr(error, "status", None)  # a method of the official exception
    return isinstance(error, (TimeoutError, asyncio.TimeoutError)) or (
        callable(status) and status() in _DEADLINE_PASSED
    )


def text_of(error: Any) -> str:
    """Returns the text of such an error; asyncio.TimeoutError has none of its own."""
    if callable(getattr(error, "status", None)):
        return str(error.message())
    text = str(error) or ("no answer came in time" if is_timeout(error) else "")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def failure_of(error: Any, during: str, limit: str) -> PyTritonClientError:
    """Returns the exception to raise for an error of the official client.

    Args:
        error: an `InferenceServerException`, an error of the connection, or a `ValueError` from
            parsing the response.
        during: purpose of the call, such as "inference request".
        limit: timeout of the call, such as "5 s".
    """
    status = getattr(error, "status", None)  # a method of the official exception
    text = text_of(error)
    if is_timeout(error):
        return PyTritonClientTimeoutError(
            f"Timeout occurred during {during}. Timeout: {limit}. Message: {text}"
        )
    if isinstance(error, ValueError):
        text = (
            f"expected an answer of a Triton server, got one that cannot be read: {error}. Is this "
            "the port for HTTP, which is 8000 by default?"
        )
    elif not callable(status):
        return PyTritonClientTimeoutError(f"No answer came to {during}. Message: {text}")
    return PyTritonClientInferenceServerError(f"Error occurred during {during}. Message: {text}")
