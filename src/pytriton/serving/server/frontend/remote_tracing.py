# SPDX-License-Identifier: Apache-2.0
"""Traces in a front end: the core records them, and a front end selects requests where it can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytriton.base.errors import sendable_text
from pytriton.base.messages import ChunkOrigins, TraceOrigin
from pytriton.runtime.transport.frontend_frames import TraceRefusal
from pytriton.serving.engine.observers import Observer, Watcher
from pytriton.serving.server.tracing.settings import ENSEMBLE, TraceSampling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytriton.base.messages import InferRequest
    from pytriton.base.model_spec import ModelSpec
    from pytriton.serving.engine.observers import Members, Run
    from pytriton.serving.server.frontend.remote_client import RemoteClient

# From this rate on, each front end counts its own requests, and those that are not selected cost
# nothing more. At lower rates the core counts all of them: then every n-th is traced, whichever
# front end it came to.
_COUNTED_HERE = 64
_OFF = -1


class RemoteTracing(Observer):
    """Selects requests, and tells the core what it has to know of them; see `Observer`."""

    reads_origins = True

    def __init__(self, send: Callable[[TraceRefusal], None], source: RemoteClient) -> None:
        self._send = send
        self._source = source
        self._rates: dict[str, int] = {}
        self._samplings: dict[str, TraceSampling] = {}  # where requests are counted here

    def passes(self, spec: ModelSpec) -> bool:
        """Returns whether the next request for a model may travel in a chunk."""
        if spec.platform != ENSEMBLE:
            return True
        sampling = self._sampling(spec.name)
        return self._rate(spec.name) <= 0 if sampling is None else sampling.passes_next()

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

    def begun(self, members: Members) -> RemoteTraces | None:
        """Select requests, which the core then traces."""
        origin, spec = members.origin(), members.spec
        if origin is None or spec is None:
            return None
        sampling, rate = self._sampling(spec.name), self._rate(spec.name)
        if rate == _OFF:
            return None
        if isinstance(origin, TraceOrigin):
            is_taken = bool(origin.traceparent) or self._takes(rate, sampling)
            origin.is_sampled = sampling is not None and not origin.traceparent
        else:
            is_taken = rate > 0 and spec.platform != ENSEMBLE
            if is_taken and sampling is not None:
                origin.is_sampled = True
                origin.indices = list(sampling.takes_of(origin.indices, is_sampled=False))
                is_taken = bool(origin.indices)
        return RemoteTraces(origin, members.requests, spec, self._send) if is_taken else None

    def _takes(self, rate: int, sampling: TraceSampling | None) -> bool:
        return rate > 0 and (sampling is None or sampling.takes_next())


class RemoteTraces(Watcher):
    """Requests that the core may trace: it is told with them, or when they are refused here."""

    sees_executions = True  # where the core does, which it is told then

    def __init__(
        self,
        origin: TraceOrigin | ChunkOrigins,
        requests: Sequence[InferRequest],
        spec: ModelSpec,
        send: Callable[[TraceRefusal], None],
    ) -> None:
        self._origin = origin
        self._requests = requests
        self._spec = spec
        self._send = send
        self._left: set[int] = set()  # those that the core does not have
        self._is_sent = False

    def _origin_of(self, index: int) -> TraceOrigin | None:
        origin = self._origin
        return origin if isinstance(origin, TraceOrigin) else origin.of(index)

    def sent(self, item: Any, index: int | None = None) -> None:
        """Tell the core with the request."""
        self._is_sent = True
        if index is None:
            item.origins = self._origin
        else:
            self._left.discard(index)
            item.trace = self._origin_of(index)

    def taken_back(self, index: int) -> None:
        """Note that the core knows nothing of a request."""
        self._left.add(index)

    def answered(self, run: Run) -> None:
        """Tell the core of a request that was refused in this process."""
        index, error, spec = run.first, run.error, self._spec
        origin = self._origin_of(index)
        is_here = not self._is_sent or index in self._left
        if not run.is_refused or not is_here or origin is None or error is None:
            return
        request = self._requests[index]
        self._send(
            TraceRefusal(
                origin,
                spec.identifier,
                spec.version,
                request.fields.id,
                request.received_ns,
                sendable_text(error.message),
                int(error.code),
            )
        )
