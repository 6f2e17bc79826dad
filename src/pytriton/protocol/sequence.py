# SPDX-License-Identifier: Apache-2.0
"""The sequence extension: the parameters that HTTP and gRPC have in common."""

from __future__ import annotations

from pytriton.base.errors import UnsupportedError

MAX_TEXT_LENGTH = 128
# The parameters that mark a sequence's first and last request, as bits of `InferRequest.flags`.
SEQUENCE_FLAGS = {"sequence_start": 1, "sequence_end": 2}


def check_sequence_id(text: str) -> str:
    """Check the text of a correlation id, and return it.

    Raises:
        UnsupportedError: The text is too long.
    """
    if len(text) > MAX_TEXT_LENGTH:
        raise UnsupportedError(
            f"string correlation ID cannot be longer than {MAX_TEXT_LENGTH} characters"
        )
    return text
