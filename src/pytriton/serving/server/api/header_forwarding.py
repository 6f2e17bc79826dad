# SPDX-License-Identifier: Apache-2.0
"""Copies request headers, or gRPC metadata, to request parameters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytriton.base.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytriton.base.messages import InferRequest, ParameterValue

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
        """Add the headers that match to the request's parameters.

        They replace parameters of the same name, also in other letters: what a gateway says in a
        header must not stand beside what the client says in its place.
        """
        forwarded: dict[str, ParameterValue] = {}
        for raw_name, raw_value in headers:
            name = raw_name.decode("latin-1")
            if not self._pattern.search(name):
                continue
            if name in _RESERVED_HEADERS or name.startswith("triton_"):
                raise InvalidArgumentError(
                    f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
                )
            forwarded[name] = raw_value.decode("latin-1")
        if forwarded:
            fields, names = request.fields, {name.lower() for name in forwarded}
            kept = {
                name: value
                for name, value in fields.parameters.items()
                if name.lower() not in names
            }
            request.fields = fields.changed(parameters={**kept, **forwarded})
