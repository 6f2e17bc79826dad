# SPDX-License-Identifier: Apache-2.0
"""TRITONSERVER_Server: servers of the application's process, and what they do with models."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pytriton.base.errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from pytriton.inprocess.c_library.delivery import Delivery
from pytriton.inprocess.c_library.metrics import MetricReports, ProcessMetrics
from pytriton.inprocess.c_library.options import OptionHandles
from pytriton.inprocess.engine_thread import EngineThread
from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.memory import Handles, put_bool, put_word, required_text
from pytriton.runtime.native_backend.server_objects import Documents, Parameters, ParameterType
from pytriton.serving.server.api.documents import repository_index

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytriton.inprocess.c_library.exchange import CallerExchange
    from pytriton.serving.engine.served_model import ServedModel

_CONFIG, _FILE = "config", "file:"  # names of the parameters of a load


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
        """Yields those that are left. Whoever removes one is who answers it."""
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
        config = None
        files = {}
        for each in self._parameters.read(parameters, count):
            if each.name == _CONFIG and isinstance(each.value, str):
                config = each.value
            elif each.name.startswith(_FILE) and isinstance(each.value, memoryview):
                files[each.name.removeprefix(_FILE)] = bytes(each.value)
            else:
                raise InvalidArgumentError(
                    "expected the parameters 'config' of type STRING and 'file:<path>' of type "
                    f"BYTES, got '{each.name}' of type {each.kind.name}"
                )
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
