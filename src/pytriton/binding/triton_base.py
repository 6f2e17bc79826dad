# SPDX-License-Identifier: Apache-2.0
"""The common base of `Triton` and `RemoteTriton`: the bound models and whether they are served."""

from __future__ import annotations

import contextlib
import logging
import pathlib
import threading
from typing import TYPE_CHECKING, Protocol

from pytriton.base.announcement import (
    Addresses,
    Announced,
    announcement,
    say,
    says_in_colour,
    slow_end_is_told,
)
from pytriton.base.lazy_module import LazyModule
from pytriton.base.request_ids import add_to_log_records
from pytriton.decorators.context import TritonContext
from pytriton.exceptions import PyTritonInvalidOperationError
from pytriton.proxy.telemetry import trace_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytriton.model_config import ModelConfig, Ray, Tensor
    from pytriton.models import binding
    from pytriton.runtime.functions.bound_config import AnyModel
    from pytriton.runtime.functions.bound_model import InferFunc
    from pytriton.utils import workspace as workspaces
    from pytriton.utils.workspace import Workspace
else:
    binding = LazyModule("pytriton.models.binding")
    workspaces = LazyModule("pytriton.utils.workspace")

logger = logging.getLogger(__name__)

MONITORING_PERIOD_S = 10.0
MODEL_TIMEOUT_S = 60.0  # for a model to be loaded or unloaded
INSTANCE_END_TIMEOUT_S = 2.0


def import_binding() -> None:
    """Import what `bind` needs, unless it was called already.

    It takes 20 ms, and `Triton` has time for that: a new server imports for longer.
    """
    binding.make_model  # noqa: B018  the first use imports it


_refusals: list[str] = []  # the reasons why no server may start now


@contextlib.contextmanager
def refusing_starts(reason: str) -> Iterator[None]:
    """Let no `Triton` of this process start its server meanwhile, in no thread."""
    _refusals.append(reason)
    try:
        yield
    finally:
        _refusals.remove(reason)


def check_start() -> None:
    """Raise PyTritonInvalidOperationError if no server may start now."""
    if _refusals:
        raise PyTritonInvalidOperationError(_refusals[-1])


class ModelServer(Protocol):
    """A server that models are bound to."""

    def bind(self, model: AnyModel, on_unrecoverable: Callable[[], None], timeout_s: float) -> None:
        """Serve a model; returns when it is ready."""

    def unbind(self, model: AnyModel, timeout_s: float) -> None:
        """Remove a model from the server."""

    def report_serving(self) -> None:
        """Let the server be ready, as its first models are served."""


class TritonBase:
    """Common base of `Triton` and `RemoteTriton`, which manages the bound models."""

    def __init__(self, workspace: Workspace | str | pathlib.Path | None) -> None:
        # No folder is created by default, because a killed process would leave it behind.
        self._workspace = (
            workspaces.Workspace(workspace)
            if isinstance(workspace, (str, pathlib.Path))
            else workspace
        )
        add_to_log_records()
        self._model_server: ModelServer | None = None  # None while there is no server to bind to
        self._context = TritonContext()
        self._models: dict[tuple[str, int], AnyModel] = {}
        self._unserved: set[tuple[str, int]] = set()  # bound before the last stop
        self._is_connected = False
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._stop_finished = threading.Event()  # cleared while a stop is in progress
        self._stop_finished.set()

    def bind(
        self,
        model_name: str | InferFunc,
        infer_func: str | InferFunc | Sequence[InferFunc] | None = None,
        inputs: Sequence[Tensor] | None = None,
        outputs: Sequence[Tensor] | None = None,
        model_version: int | None = None,
        config: ModelConfig | None = None,
        strict: bool | None = None,
        trace_config: list[str] | None = None,
        *,
        instances: Ray | None = None,
    ) -> None:
        """Serve a Python callable as a model.

        Before the server is started, the model is only recorded. If the server is running, the
        model is ready when this returns.

        If inputs or outputs are left out, the type annotations of the callable say them. It then
        takes a value for each input instead of a list of requests: one request at a time without
        `config`, and whole batches with `ModelConfig(max_batch_size=...)`.

        Args:
            model_name: name of the model: letters, digits, dots, underscores and dashes. An
                annotated callable may be given alone: the model has its name.
            infer_func: callable that takes a list of requests, or a list of such callables, each an
                instance of the model. Of an annotated class, objects are made. With `instances`,
                a function that others can import, or its name `module:function`; also a class,
                or a factory: a function without arguments, called once in each instance, which
                returns the callable.
            inputs: inputs of the model; unnamed ones are called INPUT_1, INPUT_2 and so on.
            outputs: outputs of the model; unnamed ones are called OUTPUT_1, OUTPUT_2 and so on.
            model_version: version of the model; default is 1, or the one that `@model` declares.
            config: batching and other settings; default is `ModelConfig()`, for an annotated
                callable what `@model` declares, or no batching.
            strict: whether outputs must have the declared names, types and shapes; default is
                False, or what `@model` declares.
            trace_config: settings for tracing; default are those of the server. With
                `mode=opentelemetry`, a tracer is created for this process, unless it has one.
            instances: where instances run; default is this process, one for each callable, or what
                `@model` declares. `Ray(...)` runs them as actors of a Ray cluster.

        Raises:
            ImportError: OpenTelemetry is configured but not installed.
            ValueError: OpenTelemetry is configured without a URL for its spans.
            PyTritonValidationError: An argument is wrong, annotations do not say the tensors, or
                instances need Ray, which is not installed.
            PyTritonBadParameterError: A value of `config` is out of range.
            PyTritonInvalidOperationError: The model is already bound.
            PyTritonRuntimeError: The server cannot start its instances, for example because no node
                of the cluster has room, or because the function raised an error there.
        """
        model = binding.make_model(
            binding.BindArguments(
                model_name, infer_func, inputs, outputs, model_version, config, strict, instances
            )
        )
        trace_with(trace_config or self._trace_config())
        self._add_model(model)

    def _add_model(self, model: AnyModel) -> None:
        """Record a model, and serve it if the server is running."""
        with self._lock:
            if model.key in self._models and model.key not in self._unserved:
                raise PyTritonInvalidOperationError(
                    "Cannot add model with the same name twice. "
                    f"Model {model.name} version {model.version} is bound already."
                )
            self._unserved.discard(model.key)
            self._models[model.key] = model
            self._record_model(model)
            if self._is_connected:
                try:
                    self._serve_model(model)
                    self._report_serving()
                except BaseException:
                    del self._models[model.key]
                    raise

    def unbind(self, model_name: str, model_version: int | None = None) -> None:
        """Stop serving a bound model; its open requests are finished first.

        Args:
            model_name: name of the model.
            model_version: version of the model; default are all bound versions.

        Raises:
            PyTritonInvalidOperationError: No such model is bound.
        """
        with self._lock:
            models = [
                model
                for model in self._models.values()
                if model.name == model_name and model_version in (None, model.version)
            ]
            if not models:
                raise PyTritonInvalidOperationError(
                    f"Expected the name of a bound model, got {model_name!r}. "
                    f"Bound models: {sorted(model.name for model in self._models.values())}."
                )
            for model in models:
                if self._is_connected:
                    self._remove_model(model)
                del self._models[model.key]

    def is_connected(self) -> bool:
        """Whether the bound models are served.

        Returns:
            True from the end of `connect` to `stop`.
        """
        return self._is_connected

    def _trace_config(self) -> Sequence[str]:
        """Returns the trace settings of the server, if they are known here."""
        return ()

    def _record_model(self, model: AnyModel) -> None:
        """Called when a model is bound; subclasses may write files for it."""

    def serve(self, monitoring_period_s: float = MONITORING_PERIOD_S) -> None:
        """Serve the bound models, and block until the server ends or the user interrupts.

        The models and addresses are printed to standard error, unless the log shows them or
        PYTRITON_QUIET is set. When this returns, everything is stopped in any case.

        Args:
            monitoring_period_s: seconds between two checks whether everything is alive.
        """
        try:
            self._start_serving()
            self._announce()
            while self.is_alive() and not self._stopped.wait(monitoring_period_s):
                pass
        except KeyboardInterrupt:
            logger.info("SIGINT received, exiting")
        finally:
            with slow_end_is_told():
                self.stop()

    def _announce(self) -> None:
        if logger.isEnabledFor(logging.INFO) and logger.hasHandlers():
            return  # the log shows them
        say(self._announcement())

    def _announcement(self) -> list[str]:
        """Returns the lines that say what is served and where."""
        models = [Announced(model.config, model.examples) for model in list(self._models.values())]
        return announcement(self._addresses(), models, colours=says_in_colour())

    def _addresses(self) -> Addresses:
        """Returns the addresses of the server; see the subclasses."""
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        """Stop serving."""
        self.stop()

    def _start_serving(self) -> None:
        """Serve all bound models."""
        raise NotImplementedError

    def stop(self) -> bool:
        """Stop serving; see the subclasses."""
        raise NotImplementedError

    def _stop(self, server: ModelServer | None) -> bool:
        """Stops serving if this is still the current server; see the subclasses."""
        raise NotImplementedError

    def is_alive(self) -> bool:
        """Whether everything runs; see the subclasses."""
        raise NotImplementedError

    def _serve_model(self, model: AnyModel) -> None:
        server = self._model_server
        assert server is not None
        model.prepare(self._context)
        # The server gives up after this time, with the reason.
        timeout_s = MODEL_TIMEOUT_S + model.start_timeout_s
        server.bind(model, lambda: self._on_unrecoverable(server), timeout_s)

    def _remove_model(self, model: AnyModel) -> None:
        assert self._model_server is not None
        self._model_server.unbind(model, MODEL_TIMEOUT_S)
        model.close(INSTANCE_END_TIMEOUT_S)
        model.leave(self._context)

    def _report_serving(self) -> None:
        """Let the server be ready, which waits for its first models."""
        assert self._model_server is not None
        self._model_server.report_serving()

    def _serve_models(self) -> None:
        for model in self._models.values():
            self._serve_model(model)
        self._report_serving()
        self._unserved.clear()
        self._is_connected = True

    def _are_models_alive(self) -> bool:
        models = list(self._models.values())  # a copy, because another thread may bind a model
        return all(model.is_alive() for model in models)

    def _wait_for_stop(self) -> None:
        """Waits for a stop in progress, which otherwise would also stop what is started next."""
        self._stop_finished.wait()  # no limit is needed: each of its parts has one
        self._stopped.clear()

    @contextlib.contextmanager
    def _finishing_stop(self) -> Iterator[None]:
        """The part of a stop without the lock; the caller has cleared `_stop_finished`."""
        try:
            yield
            self._close_models()
        finally:
            self._stop_finished.set()

    def _close_models(self) -> None:
        """Waits for the instances, whose channels the server has closed."""
        for model in list(self._models.values()):
            model.close(INSTANCE_END_TIMEOUT_S)
        self._unserved = set(self._models)
        if self._workspace is not None:
            self._workspace.clean()
        self._stopped.set()

    def _on_unrecoverable(self, server: ModelServer) -> None:
        """Stops serving; does nothing if the models are served by another server by now."""
        logger.error("The server stops, because a model raised PyTritonUnrecoverableError")
        # A new thread, because this is called in the thread of an instance, which a stop waits for.
        threading.Thread(
            target=self._stop, args=(server,), name="pytriton-stop", daemon=True
        ).start()
