# SPDX-License-Identifier: Apache-2.0
"""Errors that a server answers a request with: one class for each of Triton's error kinds.

The HTTP and gRPC statuses of a kind are two tables in `pytriton.server.api.status`; nothing here
knows a protocol. What users of the Python API catch lives in `pytriton.exceptions`.
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


# What a client reads of an error that is not its own fault and that nobody foresaw.
UNEXPECTED = "unexpected error in the server, its log says more"


class ServerError(Exception):
    """A request could not be served; the text is what the client reads."""

    code = ErrorCode.UNKNOWN

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    @property
    def kind(self) -> str:
        """The kind in Triton's words, which logs and states of models begin with."""
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
    """The request asks for something this server does not do."""

    code = ErrorCode.UNSUPPORTED


class AlreadyExistsError(ServerError):
    """The thing to create is there already."""

    code = ErrorCode.ALREADY_EXISTS


class CancelledError(ServerError):
    """The client gave the request up."""

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
    """The error of a kind that crossed a process as its number."""
    return _BY_CODE[ErrorCode(code)](message)


def sendable_text(text: str) -> str:
    """`text` with what UTF-8 cannot express written as escapes.

    Half a surrogate pair is such a thing; names of files have them where they are not in UTF-8.
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
