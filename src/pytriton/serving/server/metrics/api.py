# SPDX-License-Identifier: Apache-2.0
"""The metrics port: `/metrics` in the format that a scraper asks for, and the page, if any."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from typing import TYPE_CHECKING, Protocol

import msgspec

from pytriton.base.background_tasks import BackgroundTasks, call_driver
from pytriton.base.errors import UnavailableError
from pytriton.base.lazy_module import LazyModule
from pytriton.base.nvml import find_gpus
from pytriton.serving.engine.model_state import VersionState
from pytriton.serving.server.access.decisions import Denial, Scope
from pytriton.serving.server.api.authorization import Authorization, RestrictedProtocol
from pytriton.serving.server.api.gpu_view import memory_by_model, process_memory
from pytriton.serving.server.http.connection import RETRY_AFTER
from pytriton.serving.server.http.handler import HttpExchange, HttpHandler, PendingExchange
from pytriton.serving.server.metrics.exposition import (
    OPEN_TYPE,
    TEXT_TYPE,
    prefers_openmetrics,
)
from pytriton.serving.server.metrics.machine import gpu_process_families

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pytriton.base.nvml import DeviceReading, NvmlReader
    from pytriton.runtime.executor.remote.starter import ClusterStatus
    from pytriton.serving.engine.engine import Engine
    from pytriton.serving.engine.served_model import ManagedModel
    from pytriton.serving.server.access.control import AccessControl
    from pytriton.serving.server.access.decisions import Client
    from pytriton.serving.server.api.gpu_view import MemoryByModel
    from pytriton.serving.server.api.request_memory import RequestMemory
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.request import HttpRequest, RequestHead
    from pytriton.serving.server.metrics import cluster_families, otlp
    from pytriton.serving.server.metrics import page as metrics_page
    from pytriton.serving.server.metrics.exposition import SampleFamily
    from pytriton.serving.server.metrics.machine import MachineReading
    from pytriton.serving.server.metrics.page import MetricsPage
    from pytriton.serving.server.options.server_options import ClientLimits, ServerOptions
else:  # for the first scrape
    cluster_families = LazyModule("pytriton.serving.server.metrics.cluster_families")
    metrics_page = LazyModule("pytriton.serving.server.metrics.page")
    otlp = LazyModule("pytriton.serving.server.metrics.otlp")

logger = logging.getLogger(__name__)

_INSTALL_HINT = (
    "opentelemetry_url needs OpenTelemetry: pip install opentelemetry-sdk "
    "opentelemetry-exporter-otlp-proto-http"
)
_ALLOW = b"Allow: GET, HEAD\r\n"
METRICS = "metrics"  # the group of requests to this port, for policies
MAX_BODY_BYTES = 64 << 20
MAX_SCRAPES = 16  # at the same time
# So many models are read at once, in 2 ms; then requests have their turn.
_MODELS_AT_ONCE = 32
_GPU_WAIT_S = 1.0  # then a scrape shows what was read before


def _no_cluster() -> None:
    """Returns nothing: all instances run on this machine."""


def _do_nothing() -> None:
    """Nobody waits for GPUs to be found."""


class OtherPaths(Protocol):
    """Answers requests for paths that are not about metrics."""

    def owns(self, path: bytes) -> bool:
        """Returns whether it answers requests for a path."""

    def handle(self, connection: HttpConnection, request: HttpRequest) -> HttpExchange | None:
        """Answer a request now, or return the exchange that will answer it."""

    def route_refusal(self, head: RequestHead, client: Client) -> tuple[int, str] | None:
        """Returns why a request may have no large body; see `HttpHandler.route_refusal`."""


class MetricsApi(HttpHandler):
    """Answers scrapes; `custom`, `cluster` and `accepting` return further metrics."""

    def __init__(
        self,
        engine: Engine,
        options: ServerOptions,
        loop: asyncio.AbstractEventLoop,
        custom: Callable[[], Iterable[SampleFamily]] = tuple,
        cluster: Callable[[], ClusterStatus | None] = _no_cluster,
        accepting: Callable[[], Iterable[SampleFamily]] = tuple,
        request_memory: RequestMemory | None = None,
        access: AccessControl | None = None,
    ) -> None:
        origins = options.origin_policy(options.metrics.address, has_cors=False)
        super().__init__(_limits(options), loop, origins, request_memory)
        self._engine = engine
        self._custom = custom
        self._cluster = cluster
        self._accepting = accepting
        self._options = options.metrics_options
        # Triton's groups of restricted APIs have no metrics: only a policy has a right to them.
        self._authorization = Authorization((), RestrictedProtocol.HTTP, access=access)
        self._tasks = BackgroundTasks(loop)
        self.other_paths: OtherPaths | None = None  # set by the owner, if there are any
        self.scrape_count = 0  # of those that take a while, as there are many models or GPUs
        self.refused_scrapes = 0
        self.on_gpus_found: Callable[[], None] = _do_nothing  # set by the owner
        self._push: otlp.MetricsPush | None = None
        self._gpus: NvmlReader | None = None
        self._gpu_readings: Sequence[DeviceReading] = ()
        self._gpus_read_at = -math.inf
        self._gpu_task: asyncio.Task[None] | None = None

    @functools.cached_property
    def _page(self) -> MetricsPage:
        return metrics_page.MetricsPage(self._options)

    def start(self, find: Callable[[], NvmlReader | None] = find_gpus) -> None:
        """Look for GPUs, in a thread, as their driver may take a while, and send to a collector.

        Raises:
            UnavailableError: OpenTelemetry is needed, and is not installed.
        """
        if self._options.gpu:
            self._tasks.start(self._find_gpus(find))
        options = self._options
        if options.push_url:
            interval_s = options.push_interval_s
            try:
                self._push = otlp.MetricsPush(options.push_url, interval_s, self.page, self.loop)
            except ImportError as error:
                raise UnavailableError(_INSTALL_HINT) from error
            self._push.start()

    def stop(self) -> None:
        """Send no more metrics to a collector."""
        if self._push is not None:
            self._push.stop()

    async def _find_gpus(self, find: Callable[[], NvmlReader | None]) -> None:
        self._gpus = await call_driver(find)
        if self._gpus is not None:
            self.on_gpus_found()

    def route_refusal(self, head: RequestHead, client: Client) -> tuple[int, str] | None:
        """Returns why a request may have no large body: only what the page's form sends is."""
        path = head.target.partition(b"?")[0]
        if self.other_paths is not None and self.other_paths.owns(path):
            return self.other_paths.route_refusal(head, client)
        return super().route_refusal(head, client)

    def handle(self, connection: HttpConnection, request: HttpRequest) -> HttpExchange | None:
        """Answer a scrape."""
        path = request.head.target.partition(b"?")[0]
        if self.other_paths is not None and self.other_paths.owns(path):
            return self.other_paths.handle(connection, request)
        if not self._admits(connection, request.head):
            return None
        if path not in (b"/metrics", b"/metrics/"):
            connection.respond(200, (), TEXT_TYPE)
            return None
        is_open = prefers_openmetrics(request.head.headers.get(b"accept", b"").decode("latin-1"))
        server = self._server_time()
        models = self._models()
        if len(models) <= _MODELS_AT_ONCE and self._gpus is None:
            page = self._page.begin(is_open=is_open)
            for model in models:
                page.add(model)
            parts = self._page.finish(page, [*server, *self._others(models)])
            connection.respond(200, parts, OPEN_TYPE if is_open else TEXT_TYPE)
            return None
        if self.scrape_count >= MAX_SCRAPES:
            self.refused_scrapes += 1
            text = f"expected at most {MAX_SCRAPES} scrapes at the same time, got more"
            connection.respond_error(503, text, RETRY_AFTER)
            return None
        self.scrape_count += 1
        answer = self._answer(connection, models, self._gpus, is_open=is_open)
        task = self._tasks.start(answer)
        task.add_done_callback(self._on_scraped)
        return PendingExchange(HttpExchange(), task)

    def _on_scraped(self, _: asyncio.Task[None]) -> None:
        self.scrape_count -= 1

    def _admits(self, connection: HttpConnection, head: RequestHead) -> bool:
        decision = self._authorization.decide(METRICS, Scope.ALL, head.headers.get, connection)
        if isinstance(decision, Denial):
            connection.respond_error(decision.http_status, decision.message, decision.headers)
            return False
        if head.method not in (b"GET", b"HEAD"):
            connection.respond_error(405, "Method Not Allowed", _ALLOW)
            return False
        return True

    async def _answer(
        self,
        connection: HttpConnection,
        models: list[ManagedModel],
        gpus: NvmlReader | None,
        *,
        is_open: bool,
    ) -> None:
        try:
            parts = await self._read(models, gpus, is_open=is_open)
        except Exception:
            logger.exception("metrics could not be read")
            connection.respond_error(500, "metrics could not be read")
        else:
            connection.respond(200, parts, OPEN_TYPE if is_open else TEXT_TYPE)

    async def page(self) -> bytes:
        """Returns the metrics of now, for those who ask elsewhere."""
        return b"".join(await self._read(self._models(), self._gpus))

    async def machine(self) -> tuple[MachineReading | None, Sequence[DeviceReading]]:
        """Returns the numbers of the machine, if they are served, and of its GPUs."""
        if self._gpus is not None:
            await self._refresh_gpus(self._gpus)
        return self._page.machine_now() if self._options.cpu else None, self._gpu_readings

    async def gpu_memory(self) -> MemoryByModel:
        """Returns the memory on GPUs of the processes of each model; empty without GPUs."""
        if self._gpus is None:
            return {}
        await self._refresh_gpus(self._gpus)
        return memory_by_model(process_memory(self._models(), self._gpu_readings))

    def _models(self) -> list[ManagedModel]:
        # A version that failed to load, or is unloaded, has no statistics to show.
        return [model for model in self._engine.models() if _has_served(model)]

    def _server_time(self) -> list[SampleFamily]:
        """Returns what is to be read before the models, whose shares it changes."""
        return list(metrics_page.cost_families(self._engine.costs)) if self._options.costs else []

    def _others(self, models: list[ManagedModel]) -> Iterator[SampleFamily]:
        yield from self._accepting()
        yield from cluster_families.cluster_families(self._cluster(), models)
        yield from self._custom()

    async def _read(
        self, models: list[ManagedModel], gpus: NvmlReader | None, *, is_open: bool = False
    ) -> Sequence[bytes]:
        if gpus is not None:
            await self._refresh_gpus(gpus)
        server = self._server_time()
        page = self._page.begin({} if gpus is None else gpus.uuids, is_open=is_open)
        for first in range(0, len(models), _MODELS_AT_ONCE):
            for model in models[first : first + _MODELS_AT_ONCE]:
                page.add(model)
            await asyncio.sleep(0)
        others = [*server, *self._others(models)]
        if gpus is not None:
            processes = process_memory(models, self._gpu_readings)
            others += gpu_process_families(processes)
        return self._page.finish(page, others, self._gpu_readings)

    async def _refresh_gpus(self, gpus: NvmlReader) -> None:
        """Read them in a thread, no more often than the interval allows.

        A driver that hangs keeps that thread, but neither the scrape nor the server.
        """
        now = self.loop.time()
        if self._gpu_task is not None and not self._gpu_task.done():
            return
        if now - self._gpus_read_at < self._options.interval_ms / 1000:
            return
        self._gpus_read_at = now
        self._gpu_task = self._tasks.start(self._read_gpus(gpus))
        await asyncio.wait([self._gpu_task], timeout=_GPU_WAIT_S)

    async def _read_gpus(self, gpus: NvmlReader) -> None:
        try:
            self._gpu_readings = await call_driver(gpus.read)
        except Exception as error:  # noqa: BLE001  whatever a driver does, the others are shown
            logger.warning("GPUs could not be read: %s", error)
            self._gpu_readings = ()


def _limits(options: ServerOptions) -> ClientLimits:
    """Returns the limits of this port: what the page's form sends needs no gigabytes."""
    limits = options.limits
    most = min(limits.http_max_input_bytes, MAX_BODY_BYTES)
    return msgspec.structs.replace(limits, http_max_input_bytes=most)


def _has_served(model: ManagedModel) -> bool:
    is_loaded = model.state in (VersionState.READY, VersionState.UNLOADING)
    return is_loaded or bool(model.instances or model.missing_instances)
