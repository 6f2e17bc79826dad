# SPDX-License-Identifier: Apache-2.0
"""The errors with which a server answers requests: one class for each of Triton's error kinds.

This module does not depend on a protocol; the HTTP and gRPC statuses of each kind are two tables in
`pytriton.server.api.status`. The exceptions of the Python API are in `pytriton.exceptions`.
"""

from __future__ import annotations

import enum


class ErrorCode(enum.IntEnum):
    """Triton's error kinds, numbered as in its C API."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


class InputValueError(ValueError):
    """A value of a request that its model cannot take: the client's mistake, not the model's."""


# The message to a client for an unexpected error in the server.
UNEXPECTED = "unexpected error in the server, its log says more"


class ServerError(Exception):
    """A request could not be served; the client gets the message."""

    code = ErrorCode.UNKNOWN

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    @property
    def kind(self) -> str:
        """Triton's name of the kind, with which log lines and reasons of models begin."""
        return _WORDS.get(self.code) or self.code.name.replace("_", " ").capitalize()


class InternalError(ServerError):
    """The server or a model failed."""

    code = ErrorCode.INTERNAL


class NotFoundError(ServerError):
    """A model, version or region does not exist."""

    code = ErrorCode.NOT_FOUND


class InvalidArgumentError(ServerError):
    """The request contradicts the protocol or the model's configuration."""

    code = ErrorCode.INVALID_ARG


class UnavailableError(ServerError):
    """The request is fine but cannot be served now."""

    code = ErrorCode.UNAVAILABLE


class UnsupportedError(ServerError):
    """The request asks for a feature that this server does not have."""

    code = ErrorCode.UNSUPPORTED


class AlreadyExistsError(ServerError):
    """The object to create exists already."""

    code = ErrorCode.ALREADY_EXISTS


class CancelledError(ServerError):
    """The client cancelled the request."""

    code = ErrorCode.CANCELLED


_WORDS = {ErrorCode.INVALID_ARG: "Invalid argument"}
_BY_CODE: dict[ErrorCode, type[ServerError]] = {
    error.code: error
    for error in (
        ServerError,
        InternalError,
        NotFoundError,
        InvalidArgumentError,
        UnavailableError,
        UnsupportedError,
        AlreadyExistsError,
        CancelledError,
    )
}


def error_from_code(code: int, message: str) -> ServerError:
    """Make an error from the number of its kind, which another process has sent."""
    return _BY_CODE[ErrorCode(code)](message)


def sendable_text(text: str) -> str:
    """Returns `text` with escapes for characters that UTF-8 cannot encode.

    These are lone surrogates; Python has them in file names that are not valid UTF-8.
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
