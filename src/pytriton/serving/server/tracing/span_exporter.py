# SPDX-License-Identifier: Apache-2.0
"""Exports traced requests as spans, in the mode `opentelemetry`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from pytriton.serving.server.tracing.spans import make_spans

if TYPE_CHECKING:
    from pytriton.serving.server.tracing.request_trace import TraceFacts
    from pytriton.serving.server.tracing.settings import TraceSampling
    from pytriton.serving.server.tracing.spans import SpanRecord


class SpanSink(Protocol):
    """Receives spans."""

    def add(self, spans: list[SpanRecord]) -> None:
        """Add the spans of a request."""

    async def close(self, timeout_s: float) -> None:
        """Send the remaining spans, if that is possible in time."""


class SpanExporter:
    """Makes spans of requests when they have ended; see `TraceExporter`."""

    has_spans = True

    def __init__(self, spans: SpanSink) -> None:
        self._spans = spans

    def begin(self, facts: TraceFacts) -> bool:
        """Nothing has to be known before the end."""
        return True

    def end(self, facts: TraceFacts) -> None:
        """Make the spans of a request."""
        self._spans.add(make_spans(facts, time.time_ns() - time.monotonic_ns()))

    def retire(self, sampling: TraceSampling) -> None:
        """Spans do not wait for others of their setting."""

    async def close(self, timeout_s: float) -> None:
        """Send the remaining spans, if that is possible in time."""
        await self._spans.close(timeout_s)
