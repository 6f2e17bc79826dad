# SPDX-License-Identifier: Apache-2.0
"""Runs warm-up samples on an instance before it is in service, without scheduler and statistics."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from pytriton.base.errors import InternalError, ServerError
from pytriton.base.messages import InferRequest
from pytriton.runtime.executor.inference import Inference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.base.messages import InferResponse, InferTensor
    from pytriton.runtime.executor.base import Instance, Outcome, RunningBatch
    from pytriton.runtime.executor.python_instance import PythonInstance
    from pytriton.serving.engine.sequence.sequence_inputs import SequenceInputs
    from pytriton.serving.repository.loading.plans import WarmupSample

_START_AND_END = 3  # the flags of a request that is a whole sequence


class WarmupRun:
    """Receives the events of one instance until it is in service."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sequence_inputs: SequenceInputs | None = None
    ) -> None:
        self._loop = loop
        self._sequence_inputs = sequence_inputs
        self._open = 0
        self._done: asyncio.Future[None] = loop.create_future()

    async def run(
        self, instance: PythonInstance, samples: Sequence[WarmupSample], *, batching: bool
    ) -> None:
        """Execute all samples in turn; raises InternalError with the name of one that failed."""
        for sample in samples:
            inputs = sample.request_inputs(batching=batching)
            for _ in range(sample.execution_count):
                inferences = [
                    Inference(self._make_request(inputs), _DiscardingSink())
                    for _ in range(sample.request_count)
                ]
                await self._execute(instance, sample.name, inferences)

    def _make_request(self, inputs: dict[str, InferTensor]) -> InferRequest:
        request = InferRequest("", dict(inputs), correlation_id=1, flags=_START_AND_END)
        added = self._sequence_inputs
        if added is not None:
            added.add(request, added.new_states(), is_start=True, is_end=True)
        return request

    async def _execute(
        self, instance: PythonInstance, name: str, inferences: list[Inference]
    ) -> None:
        self._open = len(inferences)
        self._done = self._loop.create_future()
        try:
            instance.execute(inferences, time.monotonic_ns())
            await self._done
        except ServerError as error:
            raise InternalError(f"failed to run warmup sample '{name}': {error.message}") from error

    def on_outcomes(
        self,
        instance: Instance,
        batch: RunningBatch,
        outcomes: list[Outcome],
        times_ns: tuple[int, int],
    ) -> None:
        """Count the responses; each one of a decoupled model grants credit for another."""
        for outcome in outcomes:
            if outcome.error is not None and not self._done.done():
                self._done.set_exception(outcome.error)
            if outcome.is_final:
                self._open -= 1
            else:
                instance.grant(batch.inferences[outcome.position], 1)
        if self._open <= 0 and not self._done.done():
            self._done.set_result(None)

    def on_unavailable(self, instance: Instance) -> None:
        """Do nothing: `on_died` follows."""

    def on_died(self, instance: Instance, reason: str) -> None:
        """Do nothing: the errors of its requests have ended the warm-up."""


class _DiscardingSink:
    """Drops the responses of a warm-up."""

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Drop it."""

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        """Drop it."""

    def on_refused(self, error: ServerError) -> None:
        """Drop it."""
