# SPDX-License-Identifier: Apache-2.0
"""An engine in the caller's process: a core without ports, on an event loop in its own thread.

Everything that callers do crosses to that thread here. The thread is a daemon, so a program may end
without stopping it: the workers see that their sockets are closed, and end.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
import os
import sys
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from pytriton.base.dtypes import BYTES, walk_bytes
from pytriton.base.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    ServerError,
    UnavailableError,
    UnsupportedError,
)
from pytriton.inprocess.metrics import shared_families
from pytriton.inprocess.options import Options, server_settings
from pytriton.inprocess.shared_loop import SharedLoop
from pytriton.runtime.transport.loop_spinner import allow_spinning
from pytriton.serving.engine.validation import UncountedStringsError, validate
from pytriton.serving.repository.reading.layout import (
    ModelPlace,
    PlaceFinder,
    RenamedPlace,
    check_model_name,
    find_models,
)
from pytriton.serving.server.api.documents import model_metadata, model_statistics, server_metadata
from pytriton.serving.server.api.local_client import LocalClient
from pytriton.serving.server.metrics.api import MetricsApi
from pytriton.serving.server.metrics.exposition import SampleFamily
from pytriton.serving.server.metrics.page import custom_families
from pytriton.serving.server.options.server_options import LogOptions, ServerOptions
from pytriton.serving.server.process.logs import (
    ConsoleHandler,
    LogFile,
    LogHandler,
    formatter_factory,
)
from pytriton.serving.server.process.resources import usable_cores
from pytriton.serving.server.repository_core import RepositoryCore, make_core

if TYPE_CHECKING:
    from pytriton.base.messages import InferRequest
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.client import Answer, IndexEntry
    from pytriton.serving.engine.served_model import ServedModel


class AddedRepositories:
    """Finds the models of a server's own repositories, and of those that were added.

    A model of an added repository may have another name than its folder.

    Args:
        own: The server's own repositories, which may be removed, too.
    """

    def __init__(self, own: Iterable[str] = ()) -> None:
        self._own: PlaceFinder | None = None
        self._own_folders = frozenset(Path(path).absolute() for path in own)
        self._removed: frozenset[Path] = frozenset()  # of its own ones
        self._added: dict[Path, Mapping[str, str]] = {}  # the names of models, by folder

    def wrap(self, finder: PlaceFinder) -> PlaceFinder:
        """Returns a finder for all of them."""
        self._own = finder
        return self

    def add(self, path: str, names: Mapping[str, str]) -> None:
        """Add a repository; nothing is loaded.

        Args:
            path: The repository's folder.
            names: The names of models by the names of their folders, where they differ.

        Raises:
            InvalidArgumentError: There is no such folder, or a name is none.
            AlreadyExistsError: The server has it.
        """
        folder = Path(path).absolute()
        if not folder.is_dir():
            raise InvalidArgumentError(f"failed to register '{path}', repository not found")
        if folder in self._added or folder in self._own_folders - self._removed:
            raise AlreadyExistsError(f"model repository '{path}' has already been registered")
        for name in names.values():
            check_model_name(name)
        self._added = {**self._added, folder: dict(names)}

    def remove(self, path: str) -> None:
        """Forget a repository; its models stay loaded.

        Raises:
            InvalidArgumentError: The server does not have it.
        """
        folder = Path(path).absolute()
        if folder in self._own_folders - self._removed:
            self._removed |= {folder}
            return
        if folder not in self._added:
            raise InvalidArgumentError(f"failed to unregister '{path}', repository not found")
        self._added = {each: names for each, names in self._added.items() if each != folder}

    # PlaceFinder

    @property
    def problem(self) -> str:
        """See `PlaceFinder`."""
        return self._finder.problem

    @property
    def is_far(self) -> bool:
        """See `PlaceFinder`."""
        return self._finder.is_far

    def find(self) -> dict[str, list[ModelPlace]]:
        """See `PlaceFinder`."""
        return self._with_added(self._finder.find())

    def known(self) -> dict[str, list[ModelPlace]]:
        """See `PlaceFinder`."""
        return self._with_added(self._finder.known())

    def close(self) -> None:
        """See `PlaceFinder`."""
        self._finder.close()

    @property
    def _finder(self) -> PlaceFinder:
        assert self._own is not None, "it wraps a finder before it is used as one"
        return self._own

    def _with_added(self, found: dict[str, list[ModelPlace]]) -> dict[str, list[ModelPlace]]:
        places: dict[str, list[ModelPlace]] = {}
        for name, each in found.items():
            remaining = [
                place for place in each if place.repository.absolute() not in self._removed
            ]
            if remaining:
                places[name] = remaining
        for folder, names in self._added.items():
            for name, (place, *_) in find_models([folder]).items():
                if name in names:
                    place = RenamedPlace(place.repository, place.directory)  # noqa: PLW2901
                places.setdefault(names.get(name, name), []).append(place)
        return places


_LOGGER = logging.getLogger("pytriton")
# Without any handler, Python itself would print warnings.
_LOGGER.addHandler(logging.NullHandler())
_levels: list[int] = []  # those of all open logs


class ServerLog:
    """Writes what the package logs in Triton's format, if the settings ask for any of it.

    Without a file it is standard error, as with Triton: standard output is the program's.
    Servers of one process share the package's loggers, so the log of each has the lines of all.
    """

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self._handler: LogHandler | None = None

    def open(self) -> None:
        """Begin to write; raises OSError if the file cannot be written."""
        switches = self._options.switches
        if not (switches.info or switches.warning or switches.error or switches.verbose):
            return
        if self._options.file:
            self._handler = LogFile(self._options.file, logging.Formatter())
        else:
            self._handler = ConsoleHandler(sys.stderr, sys.stderr)
        self._handler.use(switches, formatter_factory(switches))
        _levels.append(switches.lowest_level)
        _LOGGER.setLevel(min(_levels))
        _LOGGER.addHandler(self._handler)

    def close(self) -> None:
        """Stop writing; may be called twice."""
        if self._handler is not None:
            _LOGGER.removeHandler(self._handler)
            _levels.remove(self._options.switches.lowest_level)
            _LOGGER.setLevel(min(_levels, default=logging.NOTSET))
            self._handler.close()
            self._handler = None


T = TypeVar("T")

logger = logging.getLogger(__name__)

_KILL_S = 2.0  # for workers to end that were killed


class EngineThread:
    """A started engine. Its methods may be called by any thread but its own.

    Args:
        options: The settings; those of ports have no effect.
        custom_families: Returns families of metrics that are shown beside those of models.
    """

    def __init__(
        self, options: ServerOptions, custom_families: Callable[[], Iterable[SampleFamily]] = tuple
    ) -> None:
        self.options = options
        self.is_inherited = False  # this process was forked off the one that started the engine
        self.is_over: bool = False
        self._custom_families = custom_families
        self._log = ServerLog(options.log)
        self.shared_loop: SharedLoop = SharedLoop()
        self.repositories: AddedRepositories = AddedRepositories(options.repository.paths)
        _running.add(self)

    def start(self) -> None:
        """Start the engine and load its models.

        Raises:
            ServerError: A repository cannot be read, or a model cannot be loaded and the settings
                say that this is an error.
        """
        self._log.open()
        self.shared_loop.start()
        try:
            self.run(self._start())
        except BaseException:  # also an interruption of the program
            self.stop(0)
            raise

    def stop(self, timeout_s: float) -> None:
        """Let models finish their requests for at most `timeout_s`, and end all workers."""
        if self.is_over or self.is_inherited:
            return
        self.is_over = True
        try:
            self.run(self._stop(timeout_s))
        finally:
            self._end()
        self.shared_loop.join()

    def abandon(self) -> None:
        """Begin to stop: there is no reference to the server any more."""
        if self.is_over or self.is_inherited:
            return
        self.is_over = True
        self.shared_loop.post(self._begin_to_abandon)

    # Calls from other threads

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function on the engine's thread, later.

        Raises:
            UnavailableError: The engine has ended, or belongs to another process.
        """
        self._check_process()
        try:
            self.shared_loop.post(function, *arguments)
        except RuntimeError:  # the loop is closed
            raise UnavailableError("Server exiting") from None

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function on the engine's thread; returns its result."""

        async def calling() -> T:
            return function(*arguments)

        return self.run(calling())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the engine's loop; returns its result.

        If the caller is interrupted, the coroutine is cancelled.
        """
        if self.is_inherited:
            coroutine.close()
        self._check_process()
        if self.shared_loop.is_own_thread:
            coroutine.close()
            raise InvalidArgumentError("the engine's own thread must not wait for the engine")
        counted = self._counted(coroutine)
        try:
            running = self.shared_loop.begin(counted)
        except RuntimeError:  # the loop is closed
            counted.close()
            coroutine.close()
            raise UnavailableError("Server exiting") from None
        try:
            return running.result()
        except concurrent.futures.CancelledError:
            raise UnavailableError("Server exiting") from None
        except BaseException:
            running.cancel()
            raise

    def submit(self, model: ServedModel, inference: Inference) -> None:
        """Queue a request that was validated against its model. Its sink calls `end_request`.

        Raises:
            UnavailableError: The engine has ended, or belongs to another process.
        """
        # A child must not send anything to its parent's workers.
        self._check_process()
        if not self.shared_loop.call_in_turn(self._submit, model, inference, True):
            self.post(self._submit, model, inference)

    def _check_process(self) -> None:
        if self.is_inherited:
            raise UnavailableError(
                "the server belongs to the process that this one was forked from"
            )

    def end_request(self) -> None:
        """Note that a request has ended; called on the engine's thread."""
        self.shared_loop.open_count -= 1

    def find(self, name: str, version: str) -> ServedModel:
        """Returns the model that serves a request.

        Raises:
            ServerError: It is unknown or not ready.
        """
        model = self.core.engine.known(name, version)
        return model if model is not None else self.call(self.core.engine.lookup, name, version)

    def validate(self, request: InferRequest, model: ServedModel) -> None:
        """Check a request against its model, on the caller's thread.

        Raises:
            InvalidArgumentError: It does not fit.
        """
        try:
            validate(request, model.spec)
        except UncountedStringsError:
            for tensor in request.inputs.values():
                if tensor.dtype is BYTES:
                    tensor.strings = walk_bytes(tensor.data, prod(tensor.shape))
            validate(request, model.spec)

    # Questions; see `EngineClient`

    def is_ready(self) -> bool:
        """Returns whether the server is ready."""
        return self.run(_answered(self.client.is_ready))

    def is_model_ready(self, name: str, version: str) -> bool:
        """Returns whether a model is ready."""
        return self.run(_answered(self.client.is_model_ready, name, version))

    def index(self, *, ready: bool) -> list[IndexEntry]:
        """Returns every known model version."""
        return self.run(_answered(functools.partial(self.client.index, ready=ready)))

    def server_metadata(self) -> dict[str, Any]:
        """Returns the server's name, version and extensions."""
        return server_metadata(self.options.id)

    def model_metadata(self, name: str, version: str) -> dict[str, Any]:
        """Returns the metadata of a model."""

        def read() -> dict[str, Any]:
            spec = self.client.lookup(name, version).spec
            versions = [spec.version] if version else self.client.ready_versions(name)
            return model_metadata(spec, versions)

        return self.call(read)

    def model_config(self, name: str, version: str) -> dict[str, Any]:
        """Returns the configuration of a model."""
        return _object(self.call(lambda: self.client.lookup(name, version).config_json))

    def model_statistics(self, name: str, version: str) -> dict[str, Any]:
        """Returns the statistics of a model, in Triton's layout."""
        models = self.run(_answered(self.client.statistics, name, version))
        return model_statistics(models)

    # Changes

    def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Load or reload a model; returns when it is ready."""
        self.run(self.client.load(name, config, files))

    def unload(self, name: str, *, unload_dependents: bool) -> None:
        """Unload a model; returns when it gets no new requests any more."""
        self.run(self.client.unload(name, unload_dependents=unload_dependents))

    def poll(self) -> None:
        """Load what is new or changed in the repositories, and unload what was removed."""
        if self.options.repository.model_control_mode != "poll":
            raise UnavailableError("polling is disabled")
        self.run(self.core.repositories.poll_once())

    def add_repository(self, path: str, names: Mapping[str, str]) -> None:
        """Add a repository; see `AddedRepositories`."""
        self._check_registration()
        self.call(self.repositories.add, path, names)

    def remove_repository(self, path: str) -> None:
        """Forget a repository; see `AddedRepositories`."""
        self._check_registration()
        self.call(self.repositories.remove, path)

    def _check_registration(self) -> None:
        if self.options.repository.model_control_mode != "explicit":
            raise UnsupportedError(
                "repository registration is not allowed if model control mode is not EXPLICIT"
            )

    def metrics(self) -> str:
        """Returns the metrics in Prometheus' text format."""
        return self.run(self._metrics.page()).decode()

    # On the engine's thread

    async def _counted(self, operation: Coroutine[Any, Any, T]) -> T:
        self.shared_loop.open_count += 1
        try:
            return await operation
        finally:
            self.shared_loop.open_count -= 1

    def _submit(self, model: ServedModel, inference: Inference, is_alone: bool = False) -> None:
        self.shared_loop.open_count += 1
        self.core.engine.submit_validated(model, inference, is_alone=is_alone)

    async def _start(self) -> None:
        loop = self.shared_loop.loop
        self.core: RepositoryCore = await make_core(
            self.options, loop, wrap_finder=self.repositories.wrap
        )
        core = self.core
        self.client: LocalClient = LocalClient(
            core.engine,
            core.control,
            core.trace_settings,
            strict_readiness=self.options.strict_readiness,
            change_log_settings=core.log.change,
        )
        self.client.look_again = core.look_again
        self._metrics = MetricsApi(core.engine, self.options, loop, self._families)
        self._metrics.start()
        try:
            await core.load()
        except ServerError as error:
            if self.options.exit_on_error:
                # Programs have no log by default, so the error has to say which model it was.
                problem = await _answered(self.client.problem)
                text = f"{error.message}: {problem}" if problem else error.message
                raise type(error)(text) from error
            logger.error("%s: %s", error.kind, error.message)  # noqa: TRY400  the message is enough

    def _families(self) -> Iterable[SampleFamily]:
        return [*self.core.custom_metrics(), *self._custom_families()]

    async def _stop(self, timeout_s: float) -> None:
        if not hasattr(self, "core"):  # it could not be made
            return
        self.core.engine.refuse()
        ending = asyncio.ensure_future(self.core.end_models(timeout_s))
        await asyncio.wait({ending}, timeout=timeout_s + _KILL_S)
        await self.core.close(0)

    def _begin_to_abandon(self) -> None:
        self._abandoning = asyncio.ensure_future(self._stop(0))
        self._abandoning.add_done_callback(lambda _: self._end())

    def _end(self) -> None:
        self.shared_loop.end()
        self._log.close()


async def _answered(question: Callable[..., Answer[T]], *arguments: Any) -> T:
    answer = question(*arguments)
    if isinstance(answer, Coroutine):
        return await answer
    return answer


def _object(document: bytes) -> dict[str, Any]:
    read: dict[str, Any] = orjson.loads(document)
    return read


_running: weakref.WeakSet[EngineThread] = weakref.WeakSet()
_inherited: list[EngineThread] = []


def _on_fork() -> None:
    """Let a forked child leave the engines of its parent alone.

    Their loops are kept: a loop that is freed would change what its parent's selector watches.
    """
    for engine in list(_running):
        engine.is_inherited = True
        _inherited.append(engine)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_on_fork)


def start_engine(options: Options) -> EngineThread:
    """Start an engine and load its models.

    Raises:
        PyTritonValidationError: A setting has a wrong value.
        ServerError: A repository cannot be read, or a model cannot be loaded.
        OSError: The log cannot be written.
    """
    settings = ServerOptions.from_triton_config(server_settings(options))
    allow_spinning(usable_cores(), also_workers=True)
    engine = EngineThread(settings, _families)
    engine.start()
    return engine


def stop_with(server: object, engine: EngineThread) -> Callable[[], object]:
    """End the engine when the server is freed; returns a function that undoes this."""
    finalizer = weakref.finalize(server, engine.abandon)
    finalizer.atexit = False  # at the end of the program its thread and workers end anyway
    return finalizer.detach


def _families() -> list[SampleFamily]:
    with shared_families() as shared:
        return list(custom_families(shared))
