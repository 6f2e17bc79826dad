# SPDX-License-Identifier: Apache-2.0
"""The position of a request in a distributed trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pytriton.messages import TraceContext


class InferenceTrace:
    """The trace that a request belongs to, from `InferenceRequest.trace`.

    Pass it as `trace=` to a request for another model, so that both show in one trace.
    """

    __slots__ = ("context",)

    def __init__(self, context: TraceContext | None = None) -> None:
        self.context = context  # None if the request is not traced

    def get_context(self) -> str | None:
        """Returns the server's span of this request as JSON text; None if it is not traced.

        The members are the headers `traceparent` and, if there is one, `tracestate`.
        """
        if self.context is None:
            return None
        headers = msgspec.structs.asdict(self.context)
        return msgspec.json.encode({name: text for name, text in headers.items() if text}).decode()
