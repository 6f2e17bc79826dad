# SPDX-License-Identifier: Apache-2.0
"""What every way of serving bound models shares: the models, and which of them are served."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pytriton.backend.bound_model import BoundModel
from pytriton.decorators.context import TritonContext
from pytriton.exceptions import PyTritonInvalidOperationError
from pytriton.proxy.telemetry import trace_with

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.backend.bound_model import InferFunc
    from pytriton.model_config import ModelConfig, Tensor


class TritonBase:
    """What every way of serving bound models has in common: the models and their bookkeeping."""

    def __init__(self) -> None:
        self._context = TritonContext()
        self._models: dict[tuple[str, int], BoundModel] = {}
        self._unserved: set[tuple[str, int]] = set()  # left over from before a stop
        self._is_connected = False
        self._lock = threading.RLock()
        self._stopped = threading.Event()

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

    def _serve_model(self, model: BoundModel) -> None:
        raise NotImplementedError

    def _withdraw_model(self, model: BoundModel) -> None:
        raise NotImplementedError
