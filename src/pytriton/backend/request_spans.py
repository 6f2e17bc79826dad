# SPDX-License-Identifier: Apache-2.0
"""The spans of requests, from when their batch arrives to when their last response is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import structs

from pytriton.proxy.telemetry import end_span, start_span_from_remote

if TYPE_CHECKING:
    from pytriton.transport.frames import Execute

_SPAN_NAME = "proxy_inference_callable"


class RequestSpans:
    """The open spans of the batches that one instance works on."""

    def __init__(self) -> None:
        self._by_batch: dict[int, dict[int, Any]] = {}

    def start(self, execute: Execute) -> dict[int, Any]:
        """Start the spans of a batch's traced requests; those, by position."""
        spans = {
            position: start_span_from_remote(structs.asdict(context), _SPAN_NAME)
            for position, context in execute.traces.items()
        }
        self._by_batch[execute.batch] = spans
        return spans

    def end(self, execute: Execute, error: str | None = None) -> None:
        """End the spans of a batch, if they are open still."""
        for span in self._by_batch.pop(execute.batch, {}).values():
            end_span(span, error)
