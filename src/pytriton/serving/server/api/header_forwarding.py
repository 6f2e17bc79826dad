# SPDX-License-Identifier: Apache-2.0
"""Copies request headers, or gRPC metadata, to request parameters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytriton.base.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytriton.base.messages import InferRequest

# Parameters with a meaning for the server; a header of that name must not become a parameter.
_RESERVED_HEADERS = frozenset(
    {
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "headers",
        "binary_data_output",
    }
)


class HeaderForwarding:
    """Decides which request headers become request parameters."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern, re.IGNORECASE)

    def apply(self, headers: Iterable[tuple[bytes, bytes]], request: InferRequest) -> None:
        """Add the headers that match to the request's parameters."""
        for raw_name, raw_value in headers:
            name = raw_name.decode("latin-1")
            if not self._pattern.search(name):
                continue
            if name in _RESERVED_HEADERS or name.startswith("triton_"):
                raise InvalidArgumentError(
                    f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
                )
            request.parameters[name] = raw_value.decode("latin-1")
