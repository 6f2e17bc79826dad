# SPDX-License-Identifier: Apache-2.0
"""What every way of serving bound models shares: the models, and which of them are served."""

from __future__ import annotations

import contextlib
import logging
import pathlib
import threading
from typing import TYPE_CHECKING, Protocol

from pytriton.announcement import Addresses, announcement, say
from pytriton.backend.bound_model import BoundModel
from pytriton.decorators.context import TritonContext
from pytriton.exceptions import PyTritonInvalidOperationError
from pytriton.proxy.telemetry import trace_with
from pytriton.utils.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from pytriton.backend.bound_model import InferFunc
    from pytriton.model_config import ModelConfig, Tensor

logger = logging.getLogger(__name__)

MONITORING_PERIOD_S = 10.0
MODEL_TIMEOUT_S = 60.0  # for a model to be loaded or unloaded
INSTANCE_END_TIMEOUT_S = 2.0


class Binder(Protocol):
    """A server that models are bound to."""

    def bind(
        self, model: BoundModel, on_unrecoverable: Callable[[], None], timeout_s: float
    ) -> None:
        """Have a model served; returns once it is ready."""

    def unbind(self, model: BoundModel, timeout_s: float) -> None:
        """Take a model away."""


class TritonBase:
    """What every way of serving bound models has in common: the models and their bookkeeping."""

    def __init__(self, workspace: Workspace | str | pathlib.Path | None) -> None:
        # Nothing is kept in a folder, so none is made unasked: a killed process would leave it.
        self._workspace = (
            Workspace(workspace) if isinstance(workspace, (str, pathlib.Path)) else workspace
        )
        self._binder: Binder | None = None  # while there is a server to bind to
        self._context = TritonContext()
        self._models: dict[tuple[str, int], BoundModel] = {}
        self._unserved: set[tuple[str, int]] = set()  # left over from before a stop
        self._is_connected = False
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._has_ended = threading.Event()  # not set while a stop is under way
        self._has_ended.set()

    def bind(
        self,
        model_name: str,
        infer_func: InferFunc | Sequence[InferFunc],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        model_version: int = 1,
        config: ModelConfig | None = None,
        strict: bool = False,
        trace_config: list[str] | None = None,
    ) -> None:
        """Serve a Python callable as a model.

        Before the server runs the model is only recorded; afterwards it is ready when this returns.

        Args:
            model_name: name of the model: letters, digits, dots, underscores and dashes.
            infer_func: callable that takes a list of requests, or a list of such callables, each an
                instance of the model.
            inputs: inputs of the model; unnamed ones are called INPUT_1, INPUT_2 and so on.
            outputs: outputs of the model; unnamed ones are called OUTPUT_1, OUTPUT_2 and so on.
            model_version: version of the model.
            config: batching and other settings; default is `ModelConfig()`.
            strict: whether outputs have to have the declared names, types and shapes.
            trace_config: settings for tracing; default are those of the server. With
                `mode=opentelemetry` they make the tracer of this process, unless it has one.

        Raises:
            ImportError: OpenTelemetry is asked for and not installed.
            ValueError: OpenTelemetry is asked for without a URL for its spans.
            PyTritonValidationError: An argument is wrong.
            PyTritonBadParameterError: A value of `config` is out of range.
            PyTritonInvalidOperationError: The model is bound already.
        """
        model = BoundModel(
            model_name, infer_func, inputs, outputs, model_version, config, strict=strict
        )
        trace_with(trace_config or self._trace_config())
        with self._lock:
            if model.key in self._models and model.key not in self._unserved:
                raise PyTritonInvalidOperationError(
                    "Cannot add model with the same name twice. "
                    f"Model {model_name} version {model_version} is bound already."
                )
            self._unserved.discard(model.key)
            self._models[model.key] = model
            self._record_model(model)
            if self._is_connected:
                try:
                    self._serve_model(model)
                except BaseException:
                    del self._models[model.key]
                    raise

    def unbind(self, model_name: str, model_version: int | None = None) -> None:
        """Stop serving a bound model; requests that it is working on are finished first.

        Args:
            model_name: name of the model.
            model_version: version of the model; default are all that are bound.

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
                    self._withdraw_model(model)
                del self._models[model.key]

    def is_connected(self) -> bool:
        """Whether the bound models are served.

        Returns:
            True from the end of `connect` to `stop`.
        """
        return self._is_connected

    def _trace_config(self) -> Sequence[str]:
        """What the server is told of tracing, as far as this side knows."""
        return ()

    def _record_model(self, model: BoundModel) -> None:
        """A model was bound; hook for those who keep files of their models."""

    def serve(self, monitoring_period_s: float = MONITORING_PERIOD_S) -> None:
        """Serve the bound models, and block until the server ends or the user interrupts.

        What is served, and where, is written to standard error, unless the log tells it or
        PYTRITON_QUIET is set. Whatever ends it, everything is stopped when this returns.

        Args:
            monitoring_period_s: seconds between two looks at whether everything is alive.
        """
        try:
            self._begin()
            self._announce()
            while self.is_alive() and not self._stopped.wait(monitoring_period_s):
                pass
        except KeyboardInterrupt:
            logger.info("SIGINT received, exiting")
        finally:
            self.stop()

    def _announce(self) -> None:
        if logger.isEnabledFor(logging.INFO) and logger.hasHandlers():
            return  # the log has it
        models = [model.config for model in list(self._models.values())]
        say(announcement(self._addresses(), models))

    def _addresses(self) -> Addresses:
        """Where the server is reached; see the subclasses."""
        raise NotImplementedError

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop serving."""
        self.stop()

    def _begin(self) -> None:
        """Serve all bound models."""
        raise NotImplementedError

    def stop(self) -> bool:
        """Stop serving; see the subclasses."""
        raise NotImplementedError

    def is_alive(self) -> bool:
        """Whether everything runs; see the subclasses."""
        raise NotImplementedError

    def _serve_model(self, model: BoundModel) -> None:
        assert self._binder is not None
        model.prepare(self._context)
        self._binder.bind(model, self._on_unrecoverable, MODEL_TIMEOUT_S)

    def _withdraw_model(self, model: BoundModel) -> None:
        assert self._binder is not None
        self._binder.unbind(model, MODEL_TIMEOUT_S)
        model.close(INSTANCE_END_TIMEOUT_S)

    def _serve_models(self) -> None:
        for model in self._models.values():
            self._serve_model(model)
        self._unserved.clear()
        self._is_connected = True

    def _are_models_alive(self) -> bool:
        models = list(self._models.values())  # another thread may bind meanwhile
        return all(model.is_alive() for model in models)

    def _await_end(self) -> None:
        """Let a stop that is under way come to its end: it would end what is served next, too."""
        self._has_ended.wait(MODEL_TIMEOUT_S)
        self._stopped.clear()

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """The part of a stop that needs no lock; begun by clearing `_has_ended`."""
        try:
            yield
            self._end_models()
        finally:
            self._has_ended.set()

    def _end_models(self) -> None:
        """Wait for the instances, whose channels the server has closed."""
        for model in list(self._models.values()):
            model.close(INSTANCE_END_TIMEOUT_S)
        self._unserved = set(self._models)
        if self._workspace is not None:
            self._workspace.clean()
        self._stopped.set()

    def _on_unrecoverable(self) -> None:
        # From an instance's thread, which stopping has to wait for.
        threading.Thread(target=self.stop, name="pytriton-stop", daemon=True).start()
