# SPDX-License-Identifier: Apache-2.0
"""The kinds of errors that a server answers with."""

from __future__ import annotations

import errno
import resource

import pytest

from pytriton.base.errors import ErrorCode, error_from_code, resource_error

KINDS = {
    ErrorCode.UNKNOWN: "Unknown",
    ErrorCode.INTERNAL: "Internal",
    ErrorCode.NOT_FOUND: "Not found",
    ErrorCode.INVALID_ARG: "Invalid argument",
    ErrorCode.UNAVAILABLE: "Unavailable",
    ErrorCode.UNSUPPORTED: "Unsupported",
    ErrorCode.ALREADY_EXISTS: "Already exists",
    ErrorCode.CANCELLED: "Cancelled",
    ErrorCode.RESOURCE_EXHAUSTED: "Resource exhausted",  # not one of Triton's
    ErrorCode.PERMISSION_DENIED: "Permission denied",  # nor is this
}


@pytest.mark.parametrize("code", ErrorCode)
def test_error_says_its_kind_in_tritons_words(code):
    error = error_from_code(code, "text")

    assert (error.code, error.kind, error.message) == (code, KINDS[code], "text")


@pytest.mark.parametrize(
    "error, message",
    [
        (MemoryError(), "the server has no memory left"),
        (MemoryError("56 MiB for an array"), "the server has no memory left: 56 MiB for an array"),
        (OSError(errno.ENOMEM, "mmap"), "the server has no memory left"),
        (OSError(errno.ENFILE, "open"), "the server has no file descriptors of the system left"),
        (OSError(errno.ENOSPC, "x"), "the server has no space for shared memory or files left"),
        (BlockingIOError(errno.EAGAIN, "fork"), "the server has no processes or threads left"),
    ],
)
def test_lack_of_a_resource_is_unavailable(error, message):
    answer = resource_error(error)

    assert (answer.code, answer.message) == (ErrorCode.UNAVAILABLE, message)


def test_lack_of_descriptors_names_the_limit():
    answer = resource_error(OSError(errno.EMFILE, "socket"))

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert answer.code is ErrorCode.UNAVAILABLE
    assert answer.message == f"the server has no file descriptors left (limit {limit})"


@pytest.mark.parametrize(
    "error", [OSError("no number"), OSError(errno.ECONNRESET, "gone"), ValueError("no")]
)
def test_other_errors_are_no_lack_of_a_resource(error):
    assert resource_error(error) is None
