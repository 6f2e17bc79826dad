# SPDX-License-Identifier: Apache-2.0
"""How a model says that something failed: to a client, and to itself."""

from __future__ import annotations

from pytriton.errors import ErrorCode
from pytriton.pb_utils import arguments


class TritonModelException(Exception):  # noqa: N818  the name that models catch
    """What a member of this module was asked for cannot be done; models may raise it as well."""


class TritonError:
    """The failure of one request, put in its `InferenceResponse`.

    Args:
        message: what the client reads.
        code: one of this class's constants, by which clients tell failures apart.

    Raises:
        TypeError: `message` is no string, or `code` is none of the constants.
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
        """The kind of failure."""
        return self._code

    def message(self) -> str:
        """What the client reads."""
        return self._message

    def __repr__(self) -> str:
        return f"TritonError({self._message!r}, TritonError.{self._code.name})"
