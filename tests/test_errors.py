# SPDX-License-Identifier: Apache-2.0
"""The kinds of errors that a server answers with."""

from __future__ import annotations

import pytest

from pytriton.errors import ErrorCode, error_from_code

KINDS = {
    ErrorCode.UNKNOWN: "Unknown",
    ErrorCode.INTERNAL: "Internal",
    ErrorCode.NOT_FOUND: "Not found",
    ErrorCode.INVALID_ARG: "Invalid argument",
    ErrorCode.UNAVAILABLE: "Unavailable",
    ErrorCode.UNSUPPORTED: "Unsupported",
    ErrorCode.ALREADY_EXISTS: "Already exists",
    ErrorCode.CANCELLED: "Cancelled",
}


@pytest.mark.parametrize("code", ErrorCode)
def test_error_says_its_kind_in_tritons_words(code):
    error = error_from_code(code, "text")

    assert (error.code, error.kind, error.message) == (code, KINDS[code], "text")
