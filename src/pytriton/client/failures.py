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


def is_late(error: Any) -> bool:
    """Whether an error of the official client or of its connection says that time was up."""
    status = getattr(error, "status", None)  # a method of the official exception
    return isinstance(error, (TimeoutError, asyncio.TimeoutError)) or (
        callable(status) and status() in _DEADLINE_PASSED
    )


def text_of(error: Any) -> str:
    """The text of such an error; asyncio's for a time limit has none."""
    if callable(getattr(error, "status", None)):
        return str(error.message())
    text = str(error) or ("no answer came in time" if is_late(error) else "")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def failure_of(error: Any, during: str, limit: str) -> PyTritonClientError:
    """The exception to raise for an error of the official client.

    Args:
        error: an `InferenceServerException`, or what the connection raised; a `ValueError` of who
            reads the answer.
        during: what the call was for, as "inference request".
        limit: time limit of the call, as "5 s".
    """
    status = getattr(error, "status", None)  # a method of the official exception
    text = text_of(error)
    if is_late(error):
        return PyTritonClientTimeoutError(
            f"Timeout occurred during {during}. Timeout: {limit}. Message: {text}"
        )
    if isinstance(error, ValueError):
        text = f"expected an answer of a Triton server, got one that cannot be read: {error}"
    elif not callable(status):
        return PyTritonClientTimeoutError(f"No answer came to {during}. Message: {text}")
    return PyTritonClientInferenceServerError(f"Error occurred during {during}. Message: {text}")
