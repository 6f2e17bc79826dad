# SPDX-License-Identifier: Apache-2.0
"""A server without its ports: models, the response cache, control of models, traces.

`serving.server.server.Server` adds the ports. A caller in the same process needs no port: it
starts a `Core`, calls `core.engine`, and stops it.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytriton.base.lazy_module import LazyModule
from pytriton.serving.engine.cache import ResponseStore
from pytriton.serving.engine.engine import Engine
from pytriton.serving.engine.rate_limiter import InstanceTurns, ResourceLimiter
from pytriton.serving.repository.loading.instance_factory import InstanceFactory
from pytriton.serving.server.binding.bound_control import BoundControl
from pytriton.serving.server.process.logs import LogControl
from pytriton.serving.server.tracing.settings import TraceSettings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pytriton.base.settings import RayOptions
    from pytriton.runtime.cluster import executor as cluster_executor
    from pytriton.runtime.executor.remote.starter import ClusterExecutor, ClusterStatus
    from pytriton.runtime.executor.worker import Launcher
    from pytriton.runtime.transport.control import Bind
    from pytriton.serving.engine.client import ModelControl, ModelRegistrations
    from pytriton.serving.engine.served_model import ManagedModel
    from pytriton.serving.repository.loading.python_version import PythonVersion
    from pytriton.serving.server.binding import function_loader
    from pytriton.serving.server.metrics.exposition import SampleFamily
    from pytriton.serving.server.options.server_options import ServerOptions
    from pytriton.serving.server.tracing import tracing
    from pytriton.serving.server.tracing.tracing import Tracing
else:  # for traces, and for instances on a cluster, which most servers do not have
    tracing = LazyModule("pytriton.serving.server.tracing.tracing")
    cluster_executor = LazyModule("pytriton.runtime.cluster.executor")
    function_loader = LazyModule("pytriton.serving.server.binding.function_loader")

logger = logging.getLogger(__name__)

_STALL_CHECK_INTERVAL_S = 10.0
_EXPORT_S = 2.0  # to send the last spans, if a receiver takes them
_LEAST_EXPORT_S = 0.2  # the same if the exit timeout is over
_LEAST_FINALIZE_S = 1.0  # for functions on the cluster, if the exit timeout is over
FIRST_STALL_REPORT_S = 30.0  # each later report comes after twice the time


def _make_ray(options: RayOptions, loop: asyncio.AbstractEventLoop) -> ClusterExecutor:
    return cluster_executor.RayExecutor(options, loop)


class Core:
    """The core of a server with bound models only. It is used on the event loop's thread."""

    awaits_bound_models = True  # other models are added after the start

    def __init__(self, options: ServerOptions, loop: asyncio.AbstractEventLoop) -> None:
        self.options = options
        self.engine = Engine(
            strict_readiness=options.strict_readiness,
            latency_plan=options.metrics_options.latencies if options.metrics.allow else None,
            counts_costs=options.metrics_options.costs,
            namespacing=options.repository.namespacing,
            awaits_models=options.awaits_models,
            hides_exceptions=options.hide_exceptions,
        )
        self.engine.suggests_names = options.names_are_public
        self.cache = ResponseStore(options.cache_bytes) if options.cache_bytes else None
        self.trace_settings = TraceSettings.read(options.trace_settings)
        self.tracing: Tracing | None = None
        if not self.trace_settings.is_off:
            self.tracing = tracing.Tracing.start(self.trace_settings, loop)
        if self.tracing is not None:
            self.engine.observers.add("tracing", self.tracing)
        self.log = LogControl(options.log)
        self.turns: InstanceTurns | None = None
        if options.repository.rate_limit:
            self.turns = InstanceTurns(
                ResourceLimiter(options.repository.rate_limit_resources), loop
            )
        self.instances = InstanceFactory(
            loop,
            self.cache,
            self.turns,
            log=self.log.feed,
            exit_timeout_s=options.exit_timeout_s,
        )
        self.bound_models = BoundControl(self.engine, loop)
        self._loop = loop
        self._functions: weakref.WeakSet[PythonVersion] = weakref.WeakSet()  # on the cluster
        self._stalls = StallWatch()
        self._timer: asyncio.TimerHandle | None = None
        self.make_ray = _make_ray
        self._ray: ClusterExecutor | None = None

    def start(self) -> None:
        """Start to check for models that make no progress, which are logged."""
        self._timer = self._loop.call_later(_STALL_CHECK_INTERVAL_S, self._check_stalls)
        self.engine.costs.share()  # from time to time, so that what is idle is nobody's share

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
        """Refreshes the index of models before it is read; None if it is always fresh."""
        return None

    async def load_function(self, message: Bind) -> PythonVersion:
        """Load a bound function whose instances run on the cluster.

        Raises:
            ServerError: Its configuration is wrong, or its instances cannot be started.
        """
        loader = function_loader.FunctionLoader(self.cluster_launcher, self.instances)
        supervised = await loader.load(message)
        self._functions.add(supervised)
        return supervised

    def custom_metrics(self) -> Iterable[SampleFamily]:
        """Returns the custom metrics of models."""
        return ()

    def cluster_status(self) -> ClusterStatus | None:
        """Returns what is known of the cluster that instances run on; None: they do not."""
        return None if self._ray is None else self._ray.status()

    @property
    def ray(self) -> ClusterExecutor:
        """The Ray cluster of the settings; it is connected when its launcher is first needed."""
        if self._ray is None:
            self._ray = self.make_ray(self.options.ray, self._loop)
        return self._ray

    async def cluster_launcher(self) -> Launcher:
        """Returns what starts processes on the Ray cluster; see `ClusterExecutor`."""
        return await self.ray.launcher()

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
        if self._functions:  # they may finish their work, as the cluster would kill them
            ends = [asyncio.ensure_future(each.drain_and_stop(0.0)) for each in self._functions]
            await asyncio.wait(ends, timeout=max(_LEAST_FINALIZE_S, timeout_s))
        if self._ray is not None:
            await self._ray.close()
        if self.tracing is not None:
            await self.tracing.close(min(_EXPORT_S, max(_LEAST_EXPORT_S, timeout_s)))


@dataclass(slots=True)
class _Progress:
    """The counts of a model, and when they changed last."""

    counts: tuple[int, ...]
    since_s: float
    next_report_s: float = FIRST_STALL_REPORT_S  # after `since_s`


class StallWatch:
    """Detects models that execute requests for a long time and finish none, by their counts."""

    def __init__(self) -> None:
        self._progress: dict[ManagedModel, _Progress] = {}

    def check(self, models: Iterable[ManagedModel], now_s: float) -> list[str]:
        """Returns the messages to log about models that make no progress."""
        before, self._progress = self._progress, {}
        reports = []
        for model in models:
            if not model.running_count:
                continue
            counts = _counts(model)
            progress = before.get(model)
            if progress is None or progress.counts != counts:
                progress = _Progress(counts, now_s)
            self._progress[model] = progress
            elapsed_s = now_s - progress.since_s
            if elapsed_s >= progress.next_report_s:
                progress.next_report_s = 2 * elapsed_s
                reports.append(_report(model, elapsed_s))
        return reports


def _counts(model: ManagedModel) -> tuple[int, ...]:
    statistics = model.statistics
    responses = sum(response.compute_infer.count for response in statistics.responses)
    return (
        statistics.execution_count,
        statistics.success_count,
        statistics.fail.count,
        responses,
    )


def _report(model: ManagedModel, elapsed_s: float) -> str:
    return (
        f"model '{model.spec.name}' version {model.spec.version} has finished nothing for "
        f"{elapsed_s:.0f} s: {model.running_count} requests are being executed, "
        f"{model.statistics.pending_count} wait"
    )
