# SPDX-License-Identifier: Apache-2.0
"""The exceptions of the in-process API: one class for each of Triton's error kinds.

Programs know them as those of `tritonserver`, so that is the module they name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pytriton.base.errors import ErrorCode, ServerError

_MODULE = "tritonserver"


class TritonError(Exception):
    """The base of all of them."""

    __module__ = _MODULE


class UnknownError(TritonError):
    """A failure of no other kind."""

    __module__ = _MODULE


class InternalError(TritonError):
    """The server or a model failed."""

    __module__ = _MODULE


class NotFoundError(TritonError):
    """A model or a version does not exist."""

    __module__ = _MODULE


class InvalidArgumentError(TritonError):
    """An argument is wrong, or contradicts the model's configuration."""

    __module__ = _MODULE


class UnavailableError(TritonError):
    """What was asked for is right, but cannot be done now."""

    __module__ = _MODULE


class UnsupportedError(TritonError):
    """The server cannot do what was asked for."""

    __module__ = _MODULE


class AlreadyExistsError(TritonError):
    """What is to be created exists already."""

    __module__ = _MODULE


class CancelledError(TritonError):
    """The request was cancelled; `tritonserver` has no name for it, only its base."""

    __module__ = "pytriton.inprocess"


_BY_CODE: dict[ErrorCode, type[TritonError]] = {
    ErrorCode.UNKNOWN: UnknownError,
    ErrorCode.INTERNAL: InternalError,
    ErrorCode.NOT_FOUND: NotFoundError,
    ErrorCode.INVALID_ARG: InvalidArgumentError,
    ErrorCode.UNAVAILABLE: UnavailableError,
    ErrorCode.UNSUPPORTED: UnsupportedError,
    ErrorCode.ALREADY_EXISTS: AlreadyExistsError,
    ErrorCode.CANCELLED: CancelledError,
    # `tritonserver` has no names for these:
    ErrorCode.RESOURCE_EXHAUSTED: UnavailableError,
    ErrorCode.PERMISSION_DENIED: UnavailableError,
}


def public_error(error: ServerError) -> TritonError:
    """Returns an error of the engine as programs know it."""
    return _BY_CODE[error.code](error.message or error.kind)


@contextlib.contextmanager
def public_errors() -> Iterator[None]:
    """Raise errors of the engine as programs know them."""
    try:
        yield
    except ServerError as error:
        raise public_error(error) from None
