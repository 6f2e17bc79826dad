# SPDX-License-Identifier: Apache-2.0
"""The position of a request in a distributed trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pytriton.base.messages import TraceContext


class InferenceTrace:
    """The trace that a request belongs to, from `InferenceRequest.trace`.

    Pass it as `trace=` to a request for another model, so that both show in one trace.
    """

    __slots__ = ("context",)

    def __init__(self, context: TraceContext | None = None) -> None:
        self.context: TraceContext | None = context  # None if the request is not traced

    def get_context(self) -> str | None:
        """Returns the server's span of this request as JSON text; None if it is not traced.

        The members are the headers `traceparent` and, if there is one, `tracestate`. A server that
        writes its traces to files has no spans, so this is None there.
        """
        context = self.context
        if context is None or context.is_internal:
            return None
        headers = {"traceparent": context.traceparent}
        if context.tracestate:
            headers["tracestate"] = context.tracestate
        return msgspec.json.encode(headers).decode()
