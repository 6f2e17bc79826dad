# SPDX-License-Identifier: Apache-2.0
"""The engine's interface to front ends: find a model, submit a request, report readiness.

It depends on neither HTTP nor gRPC, so an in-process user, an ensemble or a test can call it, too.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from pytriton.base.errors import ServerError, UnavailableError
from pytriton.runtime.executor.inference import Inference
from pytriton.serving.engine.delivery import refuse
from pytriton.serving.engine.model_state import ModelState
from pytriton.serving.engine.registry import ModelRegistry
from pytriton.serving.engine.string_count import StringCounter
from pytriton.serving.engine.validation import UncountedStringsError, validate

if TYPE_CHECKING:
    from pytriton.base.messages import InferRequest, RequestTrace, ResponseSink
    from pytriton.serving.engine.latency.latencies import LatencyPlan
    from pytriton.serving.engine.served_model import ServedModel


class Engine(ModelRegistry):
    """All models of a server, and the requests to them."""

    def __init__(
        self,
        *,
        strict_readiness: bool = True,
        latency_plan: LatencyPlan | None = None,
        namespacing: bool = False,
        awaits_models: bool = False,
    ) -> None:
        super().__init__(latency_plan=latency_plan, namespacing=namespacing)
        self._strict_readiness = strict_readiness
        self._strings = StringCounter()
        self._reports_not_ready = False  # still serving, but load balancers should send no more
        self.awaits_models = awaits_models  # not ready before the first ones are bound
        self.is_exiting = False  # set by `refuse`; each request reads it

    # Shutdown and readiness

    def begin_exit(self) -> None:
        """Report from now on that the server is not ready, but continue to serve."""
        self._reports_not_ready = True
        self.on_changed()

    def stop_awaiting(self) -> None:
        """Be ready if all models are: the first ones are bound."""
        if self.awaits_models:
            self.awaits_models = False
            self.on_changed()

    def refuse(self) -> None:
        """Refuse new requests; accepted requests continue."""
        self.is_exiting = True
        self.on_changed()

    def is_ready(self) -> bool:
        """Returns whether the server is ready: with strict readiness, if all models are."""
        if self.is_exiting or self._reports_not_ready:
            return False
        if not self._strict_readiness:
            return True
        return not self.awaits_models and all(
            model.is_ready or model.is_withdrawn for model in self.models()
        )

    # Requests

    def infer(
        self, request: InferRequest, sink: ResponseSink, trace: RequestTrace | None = None
    ) -> Inference:
        """Validate a request against its model and queue it.

        The sink receives every result, also a refusal, maybe before this method returns.

        Args:
            request: The request.
            sink: Receives the responses.
            trace: Records the execution, if the request is traced.

        Returns:
            The handle with which to cancel, pause and resume the request.
        """
        inference = Inference(request, sink, trace)
        self.submit(inference)
        return inference

    def submit(self, inference: Inference) -> None:
        """Find the model of a request, validate it and queue it; see `infer`."""
        request = inference.request
        try:
            if self.is_exiting:
                raise UnavailableError("Server exiting")
            # `lookup` would find the same; not calling it saves 0.3 us.
            model = self._latest.get(request.model_name)
            if model is None or request.model_version or model.state is not ModelState.READY:
                model = self.lookup(request.model_name, request.model_version)
            validate(request, model.spec)
            if self._strings.behind and self._strings.holds_back(inference, self.submit):
                return
            inference.owner = model
            model.submit(inference, time.monotonic_ns())
        except UncountedStringsError:
            self._strings.count(inference, self.submit)
        except ServerError as error:
            refuse(inference, error)

    def submit_validated(
        self, model: ServedModel, inference: Inference, *, is_alone: bool = False
    ) -> None:
        """Like `submit`, for a request that another thread has validated against its model."""
        if self.is_exiting or model.state is not ModelState.READY:
            self.submit(inference)  # it finds out what is wrong, or another version
            return
        try:
            inference.owner = model
            model.submit(inference, time.monotonic_ns(), is_alone=is_alone)
        except ServerError as error:
            refuse(inference, error)

    def submit_to(self, model: ServedModel, inference: Inference) -> None:
        """Like `submit`, for a request of the server itself, with a model that was looked up.

        Such a request is a part of one that was accepted before, so it is accepted while the server
        exits or the model is being unloaded.
        """
        try:
            validate(inference.request, model.spec)
            if self._strings.behind and self._strings.holds_back(
                inference, partial(self.submit_to, model)
            ):
                return
            inference.owner = model
            model.submit(inference, time.monotonic_ns())
        except UncountedStringsError:
            self._strings.count(inference, partial(self.submit_to, model))
        except ServerError as error:
            refuse(inference, error)
