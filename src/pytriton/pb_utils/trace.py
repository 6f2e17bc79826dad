# SPDX-License-Identifier: Apache-2.0
"""Where a request stands in a distributed trace."""

from __future__ import annotations

import msgspec


class InferenceTrace:
    """The trace that a request belongs to, from `InferenceRequest.trace`.

    Pass it as `trace=` to a request for another model, so that both show in one trace.
    """

    __slots__ = ("traceparent",)

    def __init__(self, traceparent: str | None = None) -> None:
        self.traceparent = traceparent  # of W3C Trace Context; None where nobody traces

    def get_context(self) -> str | None:
        """The context that came with the request, as JSON text; None where none came."""
        if not self.traceparent:
            return None
        return msgspec.json.encode({"traceparent": self.traceparent}).decode()
