# SPDX-License-Identifier: Apache-2.0
"""Passes the answers of a model's batches on, in the order of arrival if the model preserves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.runtime.executor.base import Outcome
from pytriton.serving.engine.delivery import deliver, deliver_run
from pytriton.serving.engine.ordering import OrderedRelease

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytriton.base.messages import InferResponse
    from pytriton.runtime.executor.base import RunningBatch
    from pytriton.runtime.executor.columns import Run
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.response_credit import ResponseCredit


class Answers:
    """The requests of a model that have no final answer yet, from instances to sinks.

    Args:
        credit: Grants decoupled models credit for the responses that sinks have taken.
        is_ordered: Whether answers are held back until all earlier requests are answered.

    Attributes:
        credit: See above.
        running: The number of requests sent to instances whose final answer was not passed on yet.
        is_ordered: Whether requests need a ticket.
    """

    __slots__ = ("_order", "credit", "is_ordered", "running")

    def __init__(self, credit: ResponseCredit, *, is_ordered: bool) -> None:
        self.running = 0
        self.is_ordered = is_ordered
        self.credit = credit
        self._order: OrderedRelease[tuple[Inference, Outcome | Run]] | None = None
        if is_ordered:
            self._order = OrderedRelease()

    def take_tickets(self, inferences: Iterable[Inference]) -> None:
        """Give accepted requests their places in the order."""
        if self._order is not None:
            for inference in inferences:
                inference.ticket = self._order.take_ticket()

    def skip(self, inference: Inference) -> None:
        """Release what waits for the answer to this request: it ends without one."""
        if self._order is not None:
            for released in self._order.skip(inference.ticket):
                self._release(*released)

    def pass_on(self, batch: RunningBatch, outcomes: list[Outcome]) -> None:
        """Tell the sinks of a batch about outcomes, and about the runs that were answered."""
        inferences = batch.inferences
        if self._order is not None:
            self._complete(self._order, batch, outcomes)
            return
        for outcome in outcomes:
            inference = inferences[outcome.position]
            if outcome.is_final:
                self.running -= 1
                deliver(inference, outcome)
            else:
                deliver(inference, outcome)
                self.credit.on_taken(inference, outcome)
        for run in batch.answered:
            count = run.end - run.first
            self.running -= count
            deliver_run(inferences[run.position : run.position + count], run)

    def pass_on_cached(self, inference: Inference, response: InferResponse) -> None:
        """Answer a request that no instance gets, after all earlier ones."""
        outcome = Outcome(0, response)
        if self._order is None:
            deliver(inference, outcome)
            return
        self.running += 1  # until all earlier requests are answered
        ticket = self._order.take_ticket()
        for released in self._order.complete(ticket, (inference, outcome)):
            self._release(*released)

    def _complete(
        self,
        order: OrderedRelease[tuple[Inference, Outcome | Run]],
        batch: RunningBatch,
        outcomes: list[Outcome],
    ) -> None:
        inferences = batch.inferences
        results: list[Outcome | Run] = [*outcomes]
        for run in batch.answered:
            results += run.split()
        for result in results:
            inference = inferences[result.position]
            for released in order.complete(inference.ticket, (inference, result)):
                self._release(*released)

    def _release(self, inference: Inference, result: Outcome | Run) -> None:
        self.running -= 1  # ordered models have one response for each request
        if isinstance(result, Outcome):
            deliver(inference, result)
        else:
            deliver_run([inference], result)
