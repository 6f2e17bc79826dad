# SPDX-License-Identifier: Apache-2.0
"""Errors of models: responses with an error for clients, and exceptions."""

from __future__ import annotations

from pytriton.base.errors import ErrorCode
from pytriton.runtime.pb_utils import arguments


class TritonModelException(Exception):  # noqa: N818  the name that models catch
    """An operation of `triton_python_backend_utils` failed; models may raise it as well.

    Args:
        arguments: The error message.
        code: One of `TritonError`'s constants. If a model that is being loaded raises the exception
            with a code, the load fails with that code and exactly this message. This argument is an
            extension of ours.
    """

    is_for_clients = True  # its text, also if they get no texts of other exceptions

    def __init__(self, *arguments: object, code: ErrorCode | None = None) -> None:
        super().__init__(*arguments)
        self.code = code


class TritonError:
    """The error of one request, for its `InferenceResponse`.

    Args:
        message: The error message for the client.
        code: One of this class's constants; clients get it as the kind of the error.

    Raises:
        TypeError: `message` is not a string, or `code` is none of the constants.
    """

    __slots__ = ("_code", "_message")

    UNKNOWN = ErrorCode.UNKNOWN
    INTERNAL = ErrorCode.INTERNAL
    NOT_FOUND = ErrorCode.NOT_FOUND
    INVALID_ARG = ErrorCode.INVALID_ARG
    UNAVAILABLE = ErrorCode.UNAVAILABLE
    UNSUPPORTED = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = ErrorCode.ALREADY_EXISTS
    CANCELLED = ErrorCode.CANCELLED

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        self._message = arguments.message(message, "message")
        if not isinstance(code, ErrorCode):
            raise TypeError(f"code must be one of TritonError's constants, got {code!r}")
        self._code = code

    def code(self) -> ErrorCode:
        """Returns the kind of the error."""
        return self._code

    def message(self) -> str:
        """Returns the error message for the client."""
        return self._message

    def __repr__(self) -> str:
        return f"TritonError({self._message!r}, TritonError.{self._code.name})"
