# SPDX-License-Identifier: Apache-2.0
"""The errors with which a server answers requests: one class for each of Triton's error kinds.

This module does not depend on a protocol; the HTTP and gRPC statuses of each kind are two tables in
`pytriton.serving.server.api.status`. The exceptions of the Python API are in `pytriton.exceptions`.
"""

from __future__ import annotations

import enum
import errno
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytriton.base.failure_records import FailureOrigin

try:  # now: without descriptors, nothing can be imported
    import resource
except ImportError:  # it does not exist on every platform

    def _descriptor_limit() -> str:
        return ""

else:

    def _descriptor_limit() -> str:
        return f" (limit {resource.getrlimit(resource.RLIMIT_NOFILE)[0]})"


logger = logging.getLogger(__name__)


class ErrorCode(enum.IntEnum):
    """Triton's error kinds, numbered as in its C API, and two of our own."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7
    # Not Triton's:
    RESOURCE_EXHAUSTED = 8  # a principal has used up what it may have
    PERMISSION_DENIED = 9  # a principal has no right to what a request would reach


class InputValueError(ValueError):
    """A value of a request that its model cannot take: the client's mistake, not the model's."""


# The message to a client for an unexpected error in the server.
UNEXPECTED = "unexpected error in the server, its log says more"


class ServerError(Exception):
    """A request could not be served; the client gets the message."""

    code = ErrorCode.UNKNOWN
    origin: FailureOrigin | None = None  # of the exception of a model behind it, if known
    retry_after_s = 0  # when the client may try again; 0: nobody knows

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    @property
    def kind(self) -> str:
        """Triton's name of the kind, with which log lines and reasons of models begin."""
        return _WORDS.get(self.code) or self.code.name.replace("_", " ").capitalize()

    @property
    def triton_code(self) -> ErrorCode:
        """The kind as programs of Triton know it, which has none for quotas and rights."""
        is_own = self.code in (ErrorCode.RESOURCE_EXHAUSTED, ErrorCode.PERMISSION_DENIED)
        return ErrorCode.UNAVAILABLE if is_own else self.code


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


class ResourceExhaustedError(ServerError):
    """A principal has used up what it may have for now; it may try again after some seconds."""

    code = ErrorCode.RESOURCE_EXHAUSTED

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class PermissionDeniedError(ServerError):
    """The sender of a request has no right to what it would reach."""

    code = ErrorCode.PERMISSION_DENIED


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
        ResourceExhaustedError,
        PermissionDeniedError,
    )
}


def error_from_code(
    code: int, message: str, origin: FailureOrigin | None = None, retry_after_s: int = 0
) -> ServerError:
    """Make an error from the number of its kind, which another process has sent."""
    error = _BY_CODE[ErrorCode(code)](message)
    if retry_after_s:
        error.retry_after_s = retry_after_s
    if origin is not None:
        error.origin = origin
    return error


def resource_error(error: BaseException) -> UnavailableError | None:
    """Returns the answer to a request for which the machine had no resources left.

    None for any other error. The request may succeed later, and the model is not at fault: such an
    error is no reason to restart it. EAGAIN counts because `fork` reports so that there are too
    many processes; callers deal with sockets that would block themselves.
    """
    if isinstance(error, MemoryError):
        return UnavailableError(f"the server has no memory left{_detail(error)}")
    if isinstance(error, RuntimeError) and str(error).startswith(_NO_THREAD):
        return UnavailableError("the server has no threads left")
    if not isinstance(error, OSError) or error.errno is None:
        return None
    if error.errno == errno.EMFILE:
        return descriptor_error()
    lack = _LACKS.get(error.errno)
    return UnavailableError(f"the server has no {lack} left") if lack is not None else None


def error_for_clients(error: BaseException, activity: str) -> ServerError:
    """Returns the answer to a request that an exception has ended.

    An exception that is neither a `ServerError` nor a lack of resources is logged.

    Args:
        error: The exception.
        activity: What the server did, for the log: "it read a request of front end 1".
    """
    if isinstance(error, ServerError):
        return error
    if (lack := resource_error(error)) is not None:
        return lack
    logger.error("unexpected error in the server while %s", activity, exc_info=error)
    return InternalError(UNEXPECTED)


def descriptor_error() -> UnavailableError:
    """Returns the answer to a request for which this process had no file descriptor left."""
    return UnavailableError(f"the server has no file descriptors left{_descriptor_limit()}")


def _detail(error: BaseException) -> str:
    text = sendable_text(str(error))
    return f": {text}" if text else ""


_NO_THREAD = "can't start new thread"  # from `threading`, which has no class of its own for it
_LACKS: dict[int, str] = {
    errno.ENFILE: "file descriptors of the system",
    errno.ETOOMANYREFS: "file descriptors to send to other processes",
    errno.ENOMEM: "memory",
    errno.ENOBUFS: "memory for sockets",
    errno.ENOSPC: "space for shared memory or files",
    errno.EDQUOT: "space for shared memory or files",
    errno.EAGAIN: "processes or threads",
}


def sendable_text(text: str) -> str:
    """Returns `text` with escapes for characters that UTF-8 cannot encode.

    These are lone surrogates; Python has them in file names that are not valid UTF-8.
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
