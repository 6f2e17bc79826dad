# SPDX-License-Identifier: Apache-2.0
"""Traces in a front end: it selects requests where that saves time, and the core traces them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pytriton.base.errors import sendable_text
from pytriton.runtime.transport.frontend_frames import TraceRefusal
from pytriton.serving.server.tracing.sampling import TraceSampling

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.base.errors import ServerError
    from pytriton.base.messages import (
        ExecutionTimes,
        InferRequest,
        InferResponse,
        ResponseSink,
        TraceContext,
        TraceOrigin,
    )
    from pytriton.base.model_spec import ModelSpec


# From this rate on, each front end counts its own requests, and those that are not selected cost
# nothing more. At lower rates the core counts all of them: then every n-th is traced, whichever
# front end it came to.
_COUNTED_HERE = 64
_OFF = -1


class RateSource(Protocol):
    """Knows the current settings."""

    trace_rates: dict[str, int]  # see `TraceSettings.rates`; a new one after each change


class RemoteTracing:
    """Selects requests, and sends what the core has to know of them; see `TraceBeginner`.

    Args:
        send: Sends a message to the core.
        source: Knows the current settings.
    """

    def __init__(self, send: Callable[[TraceRefusal], None], source: RateSource) -> None:
        self._send = send
        self._source = source
        self._rates: dict[str, int] = {}
        self._samplings: dict[str, TraceSampling] = {}  # where requests are counted here

    def passes(self, model_name: str) -> bool:
        """Count a request that is not traced; returns False if `begin` has to decide instead."""
        sampling = self._sampling(model_name)
        return self._rate(model_name) <= 0 if sampling is None else sampling.passes_next()

    def _rate(self, model_name: str) -> int:
        rates = self._rates
        return rates.get(model_name, rates.get("", _OFF))

    def _sampling(self, model_name: str) -> TraceSampling | None:
        if self._source.trace_rates is not self._rates:
            self._renew(self._source.trace_rates)
        key = model_name if model_name in self._rates else ""
        return self._samplings.get(key)

    def _renew(self, rates: dict[str, int]) -> None:
        """Count anew where a rate has changed; registries also come for other reasons."""
        known, self._rates = self._rates, rates
        self._samplings = {
            name: self._samplings[name] if known.get(name) == rate else TraceSampling(rate, -1)
            for name, rate in rates.items()
            if rate >= _COUNTED_HERE
        }

    def begin(
        self,
        request: InferRequest,
        spec: ModelSpec,
        origin: TraceOrigin,
        sink: ResponseSink,
    ) -> RemoteTrace | None:
        """Returns a sink that carries the origin of a request to the core, if it may be traced."""
        sampling = self._sampling(spec.name)
        rate = self._rate(spec.name)
        if rate == _OFF:
            return None
        if not origin.traceparent:
            if not rate or (sampling is not None and not sampling.takes_next()):
                return None
            origin.is_sampled = sampling is not None

        def report(error: ServerError) -> None:
            text, code = sendable_text(error.message), int(error.code)
            self._send(
                TraceRefusal(
                    origin,
                    spec.identifier,
                    spec.version,
                    request.id,
                    request.received_ns,
                    text,
                    code,
                )
            )

        return RemoteTrace(origin, sink, report)


class RemoteTrace:
    """A request that the core may trace; see `TracedSink`."""

    __slots__ = ("_report_refusal", "_sink", "is_sent", "origin")

    def __init__(
        self, origin: TraceOrigin, sink: ResponseSink, report_refusal: Callable[[ServerError], None]
    ) -> None:
        self.origin = origin
        self.is_sent = False  # True: the core has the request, and records its trace
        self._sink = sink
        self._report_refusal = report_refusal

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        self._sink.on_response(response, final=final)

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        self._sink.on_error(error, final=final)

    def on_refused(self, error: ServerError) -> None:
        """Pass a refusal on, and tell the core about one of this process."""
        if not self.is_sent:
            self._report_refusal(error)
        self._sink.on_refused(error)

    # The core's trace of the request records these

    def context(self, *, is_model_file: bool) -> TraceContext | None:
        """Not available here: no instance is reached from a front end."""
        raise NotImplementedError

    def add_execution(self, times_ns: ExecutionTimes) -> None:
        """Do nothing."""

    def on_cancelled(self) -> None:
        """Do nothing."""
