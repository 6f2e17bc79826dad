# SPDX-License-Identifier: Apache-2.0
"""A server without its ports: models, the response cache, control of models, traces.

`pytriton.server.server.Server` adds the ports. A caller in the same process needs no port: it
starts a `Core`, calls `core.engine`, and stops it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pytriton.engine.cache import ResponseCache
from pytriton.engine.engine import Engine
from pytriton.engine.rate_limiter import RateLimiter
from pytriton.engine.stall_watch import StallWatch
from pytriton.engine.turns import Turns
from pytriton.server.binding.bound_control import BoundControl
from pytriton.server.process.log_control import LogControl
from pytriton.server.tracing.settings import TraceSettings
from pytriton.server.tracing.tracing import Tracing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from pytriton.engine.control import ModelControl, ModelRegistrations
    from pytriton.server.metrics.exposition import Family
    from pytriton.server.options.server_options import ServerOptions

logger = logging.getLogger(__name__)

_STALL_CHECK_INTERVAL_S = 10.0
_EXPORT_S = 2.0  # to send the last spans, if a receiver takes them
_LEAST_EXPORT_S = 0.2  # the same if the exit timeout is over


class Core:
    """The core of a server with bound models only. It is used on the event loop's thread."""

    awaits_bound_models = True  # other models are added after the start

    def __init__(self, options: ServerOptions, loop: asyncio.AbstractEventLoop) -> None:
        self.options = options
        self.engine = Engine(
            strict_readiness=options.strict_readiness,
            latency_plan=options.metrics_options.latencies if options.metrics.allow else None,
            namespacing=options.repository.namespacing,
        )
        self.cache = ResponseCache(options.cache_bytes) if options.cache_bytes else None
        self.trace_settings = TraceSettings.read(options.trace_settings)
        self.tracing = Tracing.start(self.trace_settings, loop)
        self.log = LogControl(options.log)
        self.turns: Turns | None = None
        if options.repository.rate_limit:
            self.turns = Turns(RateLimiter(options.repository.rate_limit_resources), loop)
        self.bound_models = BoundControl(self.engine, loop)
        self._loop = loop
        self._stalls = StallWatch()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start to check for models that make no progress, which are logged."""
        self._timer = self._loop.call_later(_STALL_CHECK_INTERVAL_S, self._check_stalls)

    def _check_stalls(self) -> None:
        for text in self._stalls.check(self.engine.models(), self._loop.time()):
            logger.warning("%s", text)
        self.start()

    @property
    def control(self) -> ModelControl:
        """Lists, loads and unloads models for clients."""
        return self.bound_models

    @property
    def registrations(self) -> ModelRegistrations | None:
        """Adds models for clients, from folders that they name; None: it cannot."""
        return None

    @property
    def look_again(self) -> Callable[[], Awaitable[None]] | None:
        """What has to be awaited before the index is read, if that needs time."""
        return None

    def custom_metrics(self) -> Iterable[Family]:
        """Returns the custom metrics of models."""
        return ()

    async def stop(self, timeout_s: float) -> None:
        """Refuse new requests, wait at most `timeout_s` for those in flight, stop everything."""
        end = self._loop.time() + timeout_s
        self.engine.refuse()
        await self.end_models(timeout_s)
        await self.close(end - self._loop.time())

    async def end_models(self, timeout_s: float) -> None:
        """Stop all models when they have finished their requests, or after `timeout_s`."""
        await self.drain(timeout_s)
        for model in [*self.engine.models(), *self.engine.draining]:
            model.stop()

    async def drain(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` until no model has requests."""
        models = [*self.engine.models(), *self.engine.draining]
        await asyncio.gather(*(model.drain(timeout_s) for model in models))

    async def close(self, timeout_s: float) -> None:
        """Release the rest, after all models were stopped and all connections were closed."""
        if self._timer is not None:
            self._timer.cancel()
        if self.tracing is not None:
            await self.tracing.close(min(_EXPORT_S, max(_LEAST_EXPORT_S, timeout_s)))
