# SPDX-License-Identifier: Apache-2.0
"""TRITONSERVER_Server: the servers of the application's process, their models, their metrics."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from pytriton.base.errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from pytriton.inprocess.c_library.options import OptionHandles
from pytriton.inprocess.engine_thread import EngineThread
from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.memory import (
    Handles,
    KeptRecords,
    put_bool,
    put_word,
    required_text,
)
from pytriton.runtime.native_backend.server_objects import (
    Documents,
    Parameters,
    ParameterType,
    check_config_version,
)
from pytriton.serving.repository.services.custom_metrics import CustomMetrics, WorkerMetrics
from pytriton.serving.server.api.documents import repository_index
from pytriton.serving.server.metrics.exposition import SampleFamily
from pytriton.serving.server.metrics.page import custom_families, server_family_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytriton.inprocess.c_library.exchange import CallerExchange
    from pytriton.serving.engine.served_model import ServedModel

logger = logging.getLogger(__name__)


class Delivery:
    """Calls functions one after the other, in order."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.add = self._calls.put
        self._thread = threading.Thread(target=self._run, name="pytriton-callbacks", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_this_thread(self) -> bool:
        """Whether the caller is called by this object, and must not wait for it."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """Make the calls that are due, then end the thread."""
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception:
                logger.exception("a response could not be delivered")
            del call  # it refers to tensors


_PROMETHEUS = 0


class ProcessMetrics:
    """The application's metrics. A lock keeps them whole while a server reads them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shared = CustomMetrics(server_family_names)
        self._own = WorkerMetrics(self._shared)

    def perform(self, action: str, **arguments: Any) -> Any:
        """Perform an action of `WorkerMetrics`; raises ServerError if it is refused."""
        with self._lock:
            return getattr(self._own, action)(**arguments)

    def families(self) -> Iterable[SampleFamily]:
        """Returns the families as a server shows them."""
        with self._lock:
            return list(custom_families(self._shared))


@dataclasses.dataclass(slots=True)
class _Report:
    data: bytes
    address: int
    kept: KeptRecords


class MetricReports:
    """TRITONSERVER_Metrics: the metrics that servers have reported to the application."""

    def __init__(self) -> None:
        self._reports: Handles[_Report] = Handles("metrics")

    def new(self, text: str) -> int:
        """Returns the handle of a report."""
        kept, data = KeptRecords(), text.encode()
        return self._reports.add(_Report(data, kept.string(data), kept))

    @export("TRITONSERVER_MetricsDelete")
    def _delete(self, handle: int) -> None:
        self._reports.pop(handle)

    @export("TRITONSERVER_MetricsFormatted")
    def _format(self, handle: int, number: int, base: int, size: int) -> None:
        report = self._reports.get(handle)
        if number != _PROMETHEUS:
            raise InvalidArgumentError(f"unknown metrics format '{number}'")
        put_word(base, report.address)
        put_word(size, len(report.data))


class CallerServer:
    """A server that the application has made."""

    def __init__(self, engine: EngineThread) -> None:
        self.engine = engine
        self.delivery = Delivery()
        self.exchanges: set[CallerExchange] = set()  # whose last answer has not come
        self.exit_timeout_s = float(engine.options.exit_timeout_s)

    def start(self) -> None:
        """Load the models; raises ServerError if it cannot serve."""
        self.engine.start()
        self.delivery.start()

    def stop(self) -> None:
        """Finish requests, for at most the exit timeout, and end everything."""
        if self.delivery.is_this_thread:
            raise InvalidArgumentError(
                "a server cannot be stopped or deleted by one of its callbacks: it waits for them"
            )
        if self.engine.is_over:
            return
        self.engine.stop(self.exit_timeout_s)
        for exchange in self._take_exchanges():  # of those that came at the last moment
            exchange.on_error(UnavailableError("Server exiting"))
        self.delivery.stop()

    def _take_exchanges(self) -> Iterator[CallerExchange]:
        """Yields the exchanges that are left; the thread that removes one answers it."""
        with contextlib.suppress(KeyError):  # there is none any more
            while True:
                yield self.exchanges.pop()


class CallerServers:
    """The servers of this process."""

    def __init__(
        self,
        options: OptionHandles,
        documents: Documents,
        parameters: Parameters,
        metrics: ProcessMetrics,
        reports: MetricReports,
    ) -> None:
        self._options = options
        self._documents = documents
        self._parameters = parameters
        self._metrics = metrics
        self._reports = reports
        self.handles: Handles[CallerServer] = Handles("a server")

    def engine(self, handle: int) -> EngineThread:
        """Returns the engine of a server that runs.

        Raises:
            UnavailableError: It was stopped.
        """
        engine = self.handles.get(handle).engine
        if engine.is_over:
            raise UnavailableError("Server exiting")
        return engine

    def find(self, handle: int, name: str, version: int) -> ServedModel:
        """Returns a model that is ready; raises ServerError if it is not."""
        if version < -1:
            raise NotFoundError(
                f"Request for unknown model: '{name}' version {version} is not found"
            )
        return self.engine(handle).find(name, version_text(version))

    def properties(self, handle: int, name: str, version: int) -> tuple[int, bool]:
        """Returns the `max_batch_size` of a model, and whether it is decoupled."""
        spec = self.find(handle, name, version).spec
        return spec.max_batch_size, spec.decoupled

    @export("TRITONSERVER_ServerNew")
    def _new(self, place: int, options: int) -> None:
        server = CallerServer(EngineThread(self._options.read(options), self._metrics.families))
        try:
            server.start()
        except OSError as error:
            raise InternalError(f"the server cannot be started: {error}") from error
        put_word(place, self.handles.add(server))

    @export("TRITONSERVER_ServerDelete")
    def _delete(self, handle: int) -> None:
        self.handles.get(handle).stop()
        self.handles.pop(handle)

    @export("TRITONSERVER_ServerStop")
    def _stop(self, handle: int) -> None:
        self.handles.get(handle).stop()

    @export("TRITONSERVER_ServerSetExitTimeout")
    def _set_exit_timeout(self, handle: int, seconds: int) -> None:
        self.handles.get(handle).exit_timeout_s = seconds

    @export("TRITONSERVER_ServerIsLive")
    def _is_live(self, handle: int, place: int) -> None:
        self.engine(handle)
        put_bool(place, True)

    @export("TRITONSERVER_ServerIsReady")
    def _is_ready(self, handle: int, place: int) -> None:
        put_bool(place, self.engine(handle).is_ready())

    @export("TRITONSERVER_ServerMetadata")
    def _metadata(self, handle: int, place: int) -> None:
        metadata = self.handles.get(handle).engine.server_metadata()
        put_word(place, self._documents.new(metadata))

    @export("TRITONSERVER_ServerMetrics")
    def _read_metrics(self, handle: int, place: int) -> None:
        put_word(place, self._reports.new(self.engine(handle).metrics()))

    # Models

    @export("TRITONSERVER_ServerModelIndex")
    def _index(self, handle: int, flags: int, place: int) -> None:
        entries = self.engine(handle).index(ready=bool(flags & 1))
        put_word(place, self._documents.new_from_text(repository_index(entries)))

    @export("TRITONSERVER_ServerLoadModel")
    def _load(self, handle: int, name: bytes | None) -> None:
        self.engine(handle).load(required_text(name), None, {})

    @export("TRITONSERVER_ServerLoadModelWithParameters")
    def _load_with(self, handle: int, name: bytes | None, parameters: int, count: int) -> None:
        config, files = self._parameters.read_load(parameters, count)
        self.engine(handle).load(required_text(name), config, files)

    @export("TRITONSERVER_ServerUnloadModel")
    def _unload(self, handle: int, name: bytes | None) -> None:
        self.engine(handle).unload(required_text(name), unload_dependents=False)

    @export("TRITONSERVER_ServerUnloadModelAndDependents")
    def _unload_dependents(self, handle: int, name: bytes | None) -> None:
        self.engine(handle).unload(required_text(name), unload_dependents=True)

    @export("TRITONSERVER_ServerPollModelRepository")
    def _poll(self, handle: int) -> None:
        self.engine(handle).poll()

    @export("TRITONSERVER_ServerRegisterModelRepository")
    def _register(self, handle: int, path: bytes | None, names: int, count: int) -> None:
        mapping = {}
        for each in self._parameters.read(names, count):
            if each.kind is not ParameterType.STRING:
                raise InvalidArgumentError(
                    f"Attempted to register mapping for '{each.name}': expected a name of type "
                    f"STRING, got one of type {each.kind.name}"
                )
            mapping[each.name] = str(each.value)
        self.engine(handle).add_repository(required_text(path), mapping)

    @export("TRITONSERVER_ServerUnregisterModelRepository")
    def _unregister(self, handle: int, path: bytes | None) -> None:
        self.engine(handle).remove_repository(required_text(path))


def version_text(version: int) -> str:
    """Returns a version as the engine has it; a negative one stands for the latest."""
    return "" if version < 0 else str(version)


class ServedModelFunctions:
    """Answers of servers on their models."""

    def __init__(self, servers: CallerServers, documents: Documents) -> None:
        self._servers = servers
        self._documents = documents

    @export("TRITONSERVER_ServerModelIsReady")
    def _is_ready(self, server: int, name: bytes | None, version: int, place: int) -> None:
        engine = self._servers.engine(server)
        put_bool(place, engine.is_model_ready(required_text(name), version_text(version)))

    @export("TRITONSERVER_ServerModelMetadata")
    def _metadata(self, server: int, name: bytes | None, version: int, place: int) -> None:
        engine = self._servers.engine(server)
        metadata = engine.model_metadata(required_text(name), version_text(version))
        put_word(place, self._documents.new(metadata))

    @export("TRITONSERVER_ServerModelStatistics")
    def _statistics(self, server: int, name: bytes | None, version: int, place: int) -> None:
        engine = self._servers.engine(server)
        statistics = engine.model_statistics(required_text(name), version_text(version))
        put_word(place, self._documents.new(statistics))

    @export("TRITONSERVER_ServerModelConfig")
    def _config(
        self, server: int, name: bytes | None, version: int, config_version: int, place: int
    ) -> None:
        engine = self._servers.engine(server)
        config = engine.model_config(required_text(name), version_text(version))
        check_config_version(config_version)
        put_word(place, self._documents.new(config))
