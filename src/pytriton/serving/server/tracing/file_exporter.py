# SPDX-License-Identifier: Apache-2.0
"""Exports traced requests to files, in the mode `triton`."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Protocol

from pytriton.serving.server.tracing.trace_collection import TraceCollection, TraceTarget

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.serving.server.tracing.request_trace import TraceFacts
    from pytriton.serving.server.tracing.settings import TraceSampling
    from pytriton.serving.server.tracing.trace_collection import Trace, TraceBatch

# How long a trace waits to be written, together with those that end in the meantime.
_WRITE_AFTER_S = 1.0
# Requests of one trace, with the calls that models make: a stream may make them without end.
_MAX_REQUESTS = 10_000


class TraceWriter(Protocol):
    """Writes traces without blocking its caller."""

    def write(self, traces: list[Trace], size: int, number: int | None) -> None:
        """Add traces to the file of the settings, or write them to one with a number."""

    async def close(self, timeout_s: float) -> None:
        """Wait until everything is written, or for `timeout_s`."""


class _OpenTrace:
    """A request of a client that has not ended, or that made calls that have not."""

    __slots__ = ("collection", "numbers", "open_count", "requests", "root")

    def __init__(self, root: TraceFacts, collection: TraceCollection) -> None:
        self.root = root
        self.collection = collection
        self.requests: Trace = []
        self.numbers: dict[int, int] = {}  # of its requests, by the ids of their spans
        self.open_count = 0


class FileExporter:
    """Gathers the requests of each trace, and has whole traces written; see `TraceExporter`.

    Args:
        writer: Writes traces.
        call_later: Calls a function after some seconds.
    """

    has_spans = False

    def __init__(
        self, writer: TraceWriter, call_later: Callable[[float, Callable[[], None]], Any]
    ) -> None:
        self._writer = writer
        self._call_later = call_later
        self._open: dict[int, _OpenTrace] = {}  # by their ids
        self._collections: dict[TraceSampling, TraceCollection] = {}
        self._numbers = itertools.count()
        self._is_writing_due = False

    def begin(self, facts: TraceFacts) -> bool:
        """Note that a request begins.

        Returns:
            False if it is a call for a trace that is over, or that has very many calls already.
        """
        if facts.is_call:
            trace = self._open.get(facts.trace_id)
            if trace is None or len(trace.requests) >= _MAX_REQUESTS:
                return False
            facts.parent_number = trace.numbers.get(facts.parent_id, trace.root.number)
        else:
            trace = self._open[facts.trace_id] = self._new_trace(facts)
        sampling = trace.root.sampling
        assert sampling is not None, "requests of clients are sampled"
        facts.has_timestamps = sampling.has_timestamps
        facts.tensors = [] if sampling.has_tensors else None
        trace.open_count += 1
        trace.requests.append(facts)
        trace.numbers[facts.model_id] = facts.number
        return True

    def _new_trace(self, root: TraceFacts) -> _OpenTrace:
        sampling = root.sampling
        assert sampling is not None, "requests of clients are sampled"
        collection = self._collections.get(sampling)
        if collection is None:
            collection = self._collections[sampling] = TraceCollection(sampling)
        collection.begin()
        return _OpenTrace(root, collection)

    def end(self, facts: TraceFacts) -> None:
        """Have a trace written with the last of its requests."""
        trace = self._open[facts.trace_id]
        trace.open_count -= 1
        if trace.open_count:
            return
        del self._open[facts.trace_id]
        # As in Triton, requests that were refused before they were queued leave no trace.
        seen = [request for request in trace.requests if not request.is_refused]
        collection = trace.collection
        self._write(collection.end(seen))
        if collection.is_written_soon and not self._is_writing_due:
            self._is_writing_due = True
            self._call_later(_WRITE_AFTER_S, self._write_soon)
        self._forget_if_over(collection, trace.root.sampling)

    def retire(self, sampling: TraceSampling) -> None:
        """Have the traces of a setting written after the last one."""
        collection = self._collections.get(sampling)
        if collection is not None:
            self._write(collection.retire())
            self._forget_if_over(collection, sampling)

    def _forget_if_over(self, collection: TraceCollection, sampling: TraceSampling | None) -> None:
        if collection.is_over and sampling is not None:
            self._collections.pop(sampling, None)

    def _write_soon(self) -> None:
        self._is_writing_due = False
        for collection in self._collections.values():
            if collection.is_written_soon:
                self._write(collection.take())

    def _write(self, batch: TraceBatch | None) -> None:
        if batch is not None:
            number = next(self._numbers) if batch.target is TraceTarget.NUMBERED else None
            self._writer.write(batch.traces, batch.size, number)

    async def close(self, timeout_s: float) -> None:
        """Write what is left; requests that have not ended are left out."""
        for collection in self._collections.values():
            self._write(collection.take())
        self._collections.clear()
        await self._writer.close(timeout_s)
