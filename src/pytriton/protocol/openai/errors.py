# SPDX-License-Identifier: Apache-2.0
"""Errors in OpenAI's form, and which of them an error of the engine becomes.

OpenAI's clients repeat requests that were answered with 429 or with 500 and above, unless a header
tells them not to.
"""

from __future__ import annotations

from typing import Any

from pytriton.base.errors import ErrorCode, ServerError
from pytriton.protocol.json_text import dump_json

CANCELLED = 499  # the usual status of servers for clients that have gone
_QUEUE_FULL = "Exceeds maximum queue size"
_RETRY_SOON = b"Retry-After: 1\r\n"
_NO_RETRY = b"x-should-retry: false\r\n"  # the same request would fail again
_INVALID = "invalid_request_error"
_SERVER = "server_error"


class OpenAIError(Exception):
    """A request that is answered with an error.

    Args:
        status: The HTTP status.
        message: What is wrong.
        param: The member of the request that is wrong, if it is one.
        code: A word for programs.
        kind: OpenAI's type of the error.
        headers: Further header lines of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str = _INVALID,
        headers: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.kind = kind
        self.headers = headers

    def body(self) -> bytes:
        """Returns the error as a JSON document, which is also the event of a stream."""
        members: dict[str, Any] = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }
        return dump_json({"error": members})


def wrong(param: str, message: str) -> OpenAIError:
    """Returns the error for a member whose value is wrong."""
    return OpenAIError(400, message, param=param, code="invalid_value")


def unsupported(param: str, message: str) -> OpenAIError:
    """Returns the error for a member that a model does not know and that must not be ignored."""
    return OpenAIError(400, message, param=param, code="unsupported_parameter")


def unknown_model(name: str, message: str = "") -> OpenAIError:
    """Returns the error for a model that OpenAI's routes do not serve."""
    return OpenAIError(
        404,
        message or f"The model '{name}' does not exist.",
        param="model",
        code="model_not_found",
    )


def from_server_error(error: ServerError) -> OpenAIError:
    """Returns the error for one of the engine or of a model."""
    message, code = error.message, error.code
    is_full = code is ErrorCode.UNAVAILABLE and message.endswith(_QUEUE_FULL)
    if is_full or code is ErrorCode.RESOURCE_EXHAUSTED:
        return OpenAIError(
            429,
            message,
            code="rate_limit_exceeded",
            kind="rate_limit_error",
            headers=b"Retry-After: %d\r\n" % max(1, error.retry_after_s),
        )
    if code is ErrorCode.UNAVAILABLE:
        return OpenAIError(503, message, code="unavailable", kind=_SERVER, headers=_RETRY_SOON)
    if code is ErrorCode.INTERNAL:
        return OpenAIError(500, message, code="model_error", kind=_SERVER, headers=_NO_RETRY)
    if code is ErrorCode.NOT_FOUND:
        return OpenAIError(404, message, param="model", code="model_not_found")
    if code is ErrorCode.CANCELLED:
        message = message or "The request was cancelled."
        return OpenAIError(CANCELLED, message, code="cancelled", kind=_SERVER)
    return OpenAIError(400, message)
