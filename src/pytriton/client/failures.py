# SPDX-License-Identifier: Apache-2.0
"""Turns what the official client raises into the clients' own exceptions."""

from __future__ import annotations

import asyncio
from typing import Any

from pytriton.client.exceptions import (
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
)

# Either side may be the first to see a deadline pass, and a server then cancels the call.
_DEADLINE_PASSED = ("StatusCode.DEADLINE_EXCEEDED", "StatusCode.CANCELLED")


def failure_of(error: Any, during: str, limit: str) -> PyTritonClientError:
    """The exception to raise for an error of the official client.

    Args:
        error: an `InferenceServerException`, or what the connection raised; a `ValueError` of who
            reads the answer.
        during: what the call was for, as "inference request".
        limit: time limit of the call, as "5 s".
    """
    status = getattr(error, "status", None)  # a method of the official exception
    text = error.message() if callable(status) else f"{type(error).__name__}: {error}"
    is_late = isinstance(error, (TimeoutError, asyncio.TimeoutError))
    if is_late or (callable(status) and status() in _DEADLINE_PASSED):
        return PyTritonClientTimeoutError(
            f"Timeout occurred during {during}. Timeout: {limit}. Message: {text}"
        )
    if isinstance(error, ValueError):
        text = f"expected an answer of a Triton server, got one that cannot be read: {error}"
    elif not callable(status):
        return PyTritonClientTimeoutError(f"No answer came to {during}. Message: {text}")
    return PyTritonClientInferenceServerError(f"Error occurred during {during}. Message: {text}")
