# SPDX-License-Identifier: Apache-2.0
"""The spans of requests, from the arrival of the batch to the last response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import structs

from pytriton.proxy.telemetry import end_span, start_span_from_remote

if TYPE_CHECKING:
    from pytriton.runtime.transport.frames import Execute

_SPAN_NAME = "proxy_inference_callable"


class RequestSpans:
    """The open spans of the batches that one instance works on."""

    def __init__(self) -> None:
        self._by_batch: dict[int, dict[int, Any]] = {}

    def start(self, execute: Execute) -> dict[int, Any]:
        """Start the spans of the traced requests of a batch; returns them by position."""
        spans = {
            position: start_span_from_remote(structs.asdict(context), _SPAN_NAME)
            for position, context in execute.traces.items()
        }
        self._by_batch[execute.batch] = spans
        return spans

    def end(self, execute: Execute, error: str | None = None) -> None:
        """End the spans of a batch that are still open."""
        for span in self._by_batch.pop(execute.batch, {}).values():
            end_span(span, error)
