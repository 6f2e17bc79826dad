# SPDX-License-Identifier: Apache-2.0
"""A server in the caller's process, without ports."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytriton.base.lazy_module import LazyModule
from pytriton.exceptions import PyTritonValidationError
from pytriton.inprocess.enums import MetricFormat
from pytriton.inprocess.errors import (
    InternalError,
    InvalidArgumentError,
    UnavailableError,
    public_errors,
)
from pytriton.inprocess.model import Model, ModelDictionary
from pytriton.inprocess.options import Options, check_types

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.inprocess import engine_thread
    from pytriton.inprocess.engine_thread import EngineThread
else:  # it takes 0.2 s to import, and programs that only use tensors do not need it
    engine_thread = LazyModule("pytriton.inprocess.engine_thread")

_CONFIG = "config"
_FILE = "file:"
_UNLOADED_STATES = (None, "UNAVAILABLE")


class Server:
    """A server that is called directly; models run in worker processes, as in any other server.

    Nothing is checked and nothing runs before `start`. After `stop` it may be started again. A
    process may have several servers. Any thread may call one, also at the same time.

    Args:
        options: The settings.
        **kwargs: Fields of `Options`, if no options are given.
    """

    def __init__(self, options: Options | None = None, **kwargs: Any) -> None:
        self.options: Options = Options(**kwargs) if options is None else options
        self._engine: EngineThread | None = None
        self._forget_engine: Callable[[], object] | None = None

    # Lifecycle

    def start(
        self,
        wait_until_ready: bool = False,
        polling_interval: float = 0.1,
        timeout: float | None = None,
    ) -> Server:
        """Start the server and load its models.

        Args:
            wait_until_ready: Whether to return only when the server is ready.
            polling_interval: Seconds between two looks at whether it is.
            timeout: Seconds to wait for that; None: no limit.

        Returns:
            This server.

        Raises:
            TypeError: An option has a wrong type.
            InvalidArgumentError: An option has a wrong value, or the server was started already.
            InternalError: A repository cannot be read, or a model cannot be loaded; then the server
                is not started.
            UnavailableError: It was not ready in time. It runs.
        """
        if self._engine is not None:
            raise InvalidArgumentError("Server already started")
        check_types(self.options)
        try:
            with public_errors():
                engine = engine_thread.start_engine(self.options)
        except PyTritonValidationError as error:
            raise InvalidArgumentError(error.message) from None
        except OSError as error:  # for example of the log's file
            raise InternalError(f"the server cannot start: {error}") from error
        self._engine = engine
        self._forget_engine = engine_thread.stop_with(self, engine)
        if wait_until_ready:
            self._await_ready(polling_interval, timeout)
        return self

    def _await_ready(self, polling_interval: float, timeout: float | None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        while not self.ready():
            if end is not None and time.monotonic() >= end:
                raise UnavailableError("Timeout before ready")
            time.sleep(polling_interval)

    def stop(self) -> None:
        """Unload all models and end; requests have `exit_timeout` seconds to finish.

        Raises:
            InvalidArgumentError: The server is not started.
        """
        engine = self.engine
        self._engine = None
        if self._forget_engine is not None:
            self._forget_engine()
        engine.stop(self.options.exit_timeout)

    @property
    def engine(self) -> EngineThread:
        """The engine of a started server, for other modules of this package."""
        engine = self._engine
        if engine is None:
            raise InvalidArgumentError("Server not started")
        return engine

    # Questions

    def live(self) -> bool:
        """Returns whether the server runs."""
        return not self.engine.is_over

    def ready(self) -> bool:
        """Returns whether the server and, with strict readiness, all its models are ready."""
        with public_errors():
            return self.engine.is_ready()

    def metadata(self) -> dict[str, Any]:
        """Returns the server's name, its version, and the extensions that it supports."""
        with public_errors():
            return self.engine.server_metadata()

    def metrics(self, metric_format: MetricFormat = MetricFormat.PROMETHEUS) -> str:
        """Returns all metrics.

        Raises:
            InvalidArgumentError: The format is not that of Prometheus.
        """
        if metric_format is not MetricFormat.PROMETHEUS:
            raise InvalidArgumentError(
                f"metric_format must be MetricFormat.PROMETHEUS, got {metric_format!r}"
            )
        with public_errors():
            return self.engine.metrics()

    # Models

    def model(self, model_name: str, model_version: int = -1) -> Model:
        """Returns a model by its name, which is not looked up before it is used.

        Args:
            model_name: The name.
            model_version: The version; -1: the latest that is ready.
        """
        self.engine  # noqa: B018  raises if the server is not started
        return Model(self, model_name, model_version)

    def models(self, exclude_not_ready: bool = False) -> ModelDictionary:
        """Returns all models of the repositories, by name and version.

        Args:
            exclude_not_ready: Whether to leave those out that are not ready.
        """
        with public_errors():
            entries = self.engine.index(ready=exclude_not_ready)
        return ModelDictionary(
            self,
            [
                Model(
                    self,
                    entry.name,
                    int(entry.version) if entry.version else -1,
                    entry.state or None,
                    entry.reason or None,
                )
                for entry in entries
            ],
        )

    def load(self, model_name: str, parameters: Mapping[str, Any] | None = None) -> Model:
        """Load or reload a model; returns when it is ready. The control mode must be EXPLICIT.

        Args:
            model_name: The name.
            parameters: Under "config" a configuration as JSON, and under "file:<path>" the bytes of
                files, which replace those of the repository.

        Returns:
            The model.

        Raises:
            TritonError: It cannot be loaded. Versions that were loaded before remain.
        """
        config, files = _load_parameters(parameters or {})
        with public_errors():
            self.engine.load(model_name, config, files)
        return Model(self, model_name)

    def unload(
        self,
        model: str | Model,
        unload_dependents: bool = False,
        wait_until_unloaded: bool = False,
        polling_interval: float = 0.1,
        timeout: float | None = None,
    ) -> None:
        """Unload a model. The control mode must be EXPLICIT.

        Args:
            model: The model or its name.
            unload_dependents: Whether to unload the models of an ensemble's steps, too.
            wait_until_unloaded: Whether to wait until its requests are finished.
            polling_interval: Seconds between two looks at whether they are.
            timeout: Seconds to wait for that; then this returns as well.
        """
        name = model.name if isinstance(model, Model) else model
        with public_errors():
            self.engine.unload(name, unload_dependents=unload_dependents)
        end = None if timeout is None else time.monotonic() + timeout
        while wait_until_unloaded and self._is_loaded(name):
            if end is not None and time.monotonic() >= end:
                return
            time.sleep(polling_interval)

    def _is_loaded(self, name: str) -> bool:
        models = self.models().values()
        return any(each.name == name and each.state not in _UNLOADED_STATES for each in models)

    def register_model_repository(
        self, path: str, name_mapping: Mapping[str, str] | None = None
    ) -> None:
        """Add a repository, whose models may then be loaded. The control mode must be EXPLICIT.

        Args:
            path: The repository's folder.
            name_mapping: The names of models by the names of their folders, where they differ.
        """
        with public_errors():
            self.engine.add_repository(path, name_mapping or {})

    def unregister_model_repository(self, path: str) -> None:
        """Forget a repository; its models stay loaded."""
        with public_errors():
            self.engine.remove_repository(path)

    def poll_model_repository(self) -> None:
        """Load models that are new or changed, unload removed ones. The mode must be POLL."""
        with public_errors():
            self.engine.poll()


def _load_parameters(parameters: Mapping[str, Any]) -> tuple[str | None, dict[str, bytes]]:
    """Returns the configuration and the files in the parameters of a load."""
    config = None
    files = {}
    for name, value in parameters.items():
        if name == _CONFIG:
            if not isinstance(value, str):
                raise InvalidArgumentError(f"load parameter 'config' must be a str, got {value!r}")
            config = value
        elif name.startswith(_FILE):
            if not isinstance(value, bytes | bytearray | memoryview):
                raise InvalidArgumentError(
                    f"load parameter '{name}' must be bytes, got {type(value)}"
                )
            files[name.removeprefix(_FILE)] = bytes(value)
        else:
            raise InvalidArgumentError(
                f"unrecognized load parameter '{name}': expected 'config' or 'file:<path>'"
            )
    return config, files
