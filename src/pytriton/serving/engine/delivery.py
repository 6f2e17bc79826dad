# SPDX-License-Identifier: Apache-2.0
"""Delivers outcomes to the sinks of their requests, so that each request ends exactly once.

`Answers` does it for a model: in the order of arrival if the model preserves it, and with credit
for more responses of decoupled models as clients take them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pytriton.base.errors import (
    ServerError,
    UnavailableError,
    error_for_clients,
)
from pytriton.base.request_ids import request_ids
from pytriton.runtime.executor.inference import CLOSED_SINK, Inference, Outcome, RunningBatch
from pytriton.runtime.transport.credit import is_grant_due

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from pytriton.base.messages import InferResponse, ResponseBurst, ResponseSink
    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.executor.columns import ChunkRun

logger = logging.getLogger(__name__)


def deliver(inference: Inference, outcome: Outcome) -> None:
    """Pass an outcome to its sink; if the sink fails, the request ends with an error."""
    if inference.is_over:  # an earlier response could not be delivered
        return
    is_final = outcome.is_final
    chunk = inference.chunk
    sink = inference.sink if chunk is None else chunk.member_sink(inference.index)
    if is_final:  # the same as `Inference.end`, without a call
        inference.is_over = True
        inference.sink = CLOSED_SINK
        inference.trace = None
    try:
        if outcome.error is not None:
            sink.on_error(outcome.error, final=is_final)
        else:
            sink.on_response(outcome.response, final=is_final)
    except Exception as error:  # noqa: BLE001  other requests of the batch must get their responses
        if outcome.error is None or not is_final:
            _fail(sink, inference, error)
        else:
            _log(inference, error)
        if not is_final:
            inference.cancel()  # later responses of the model have no receiver
            inference.end()


def deliver_burst(inference: Inference, burst: ResponseBurst) -> None:
    """Pass many responses to their sink, with one call if it takes them so; like `deliver`."""
    sink: Any = inference.sink
    if not hasattr(sink, "on_burst"):
        for response in burst.responses():
            deliver(inference, Outcome(0, response, None, is_final=False))
        return
    if inference.is_over:  # an earlier response could not be delivered
        return
    try:
        sink.on_burst(burst)
    except Exception as error:  # noqa: BLE001  other requests must get their responses
        _fail(sink, inference, error)
        inference.cancel()  # later responses of the model have no receiver
        inference.end()


def deliver_run(inferences: list[Inference], run: ChunkRun) -> None:
    """Pass the answers of a run to its sink; if the sink fails, each member ends with an error."""
    for inference in inferences:
        inference.is_over = True
    chunk = run.chunk
    try:
        chunk.sink.on_rows(chunk, run.first, run.end, run.outputs, run.row)
    except Exception as error:  # noqa: BLE001  other requests of the batch must get their responses
        error = _failure(inferences[0], error)
        for inference in inferences:
            _fail(chunk.member_sink(inference.index), inference, error)


def refuse(inference: Inference, error: ServerError) -> None:
    """Report to the sink that its request was refused."""
    sink = inference.end()
    try:
        sink.on_refused(error)
    except Exception as failure:  # noqa: BLE001  it is logged
        _log(inference, failure)


def dispatch_error(model_name: str, error: Exception) -> ServerError:
    """Returns the error for the requests of a batch that could not be sent to an instance."""
    return error_for_clients(error, f"it sent a batch to model {model_name}")


def not_ready_error(spec: ModelSpec) -> ServerError:
    """Returns the error for the requests that wait when a model ends."""
    return UnavailableError(
        f"Request for unknown model: '{spec.identifier}' version {spec.version} is not at ready "
        "state"
    )


def _fail(sink: ResponseSink, inference: Inference, error: Exception) -> None:
    try:
        sink.on_error(_failure(inference, error))
    except Exception as failure:  # noqa: BLE001  it is logged
        _log(inference, failure)


def _failure(inference: Inference, error: Exception) -> ServerError:
    """Returns the error for the client of a response that its sink did not take."""
    name, request_id = inference.request.model_name, inference.request.fields.id
    with request_ids({0: request_id} if request_id else {}):
        return error_for_clients(error, f"it delivered a response of model {name}")


def _log(inference: Inference, failure: Exception) -> None:
    name, request_id = inference.request.model_name, inference.request.fields.id
    with request_ids({0: request_id} if request_id else {}):
        logger.error("model %s: a response could not be delivered", name, exc_info=failure)


Result = TypeVar("Result")


class OrderedRelease(Generic[Result]):
    """Keeps a finished result until all earlier ones are released.

    Every request takes a ticket when it arrives and returns it exactly once: with `complete`, or
    with `skip` if it has no result.
    """

    __slots__ = ("_finished", "_issued", "_released")

    def __init__(self) -> None:
        self._issued = 0
        self._released = 0
        self._finished: dict[int, list[Result]] = {}  # by ticket, all later than `_released`

    def take_ticket(self) -> int:
        """Returns the ticket of the next request."""
        ticket = self._issued
        self._issued = ticket + 1
        return ticket

    def complete(self, ticket: int, result: Result) -> list[Result]:
        """Give back a ticket with its result; returns the results to release now, in order."""
        return self._finish(ticket, [result])

    def skip(self, ticket: int) -> list[Result]:
        """Give back a ticket without a result; returns the results to release now, in order."""
        return self._finish(ticket, [])

    def _finish(self, ticket: int, results: list[Result]) -> list[Result]:
        finished = self._finished
        if not self._released <= ticket < self._issued or ticket in finished:
            raise ValueError(
                f"expected a ticket from {self._released} to {self._issued - 1} that was not "
                f"returned before, got {ticket}"
            )
        if ticket != self._released:
            finished[ticket] = results
            return []
        self._released += 1
        while self._released in finished:
            results += finished.pop(self._released)
            self._released += 1
        return results

    def __len__(self) -> int:
        """Returns the number of finished results that wait for an earlier one."""
        return len(self._finished)

    def __repr__(self) -> str:
        running = self._issued - self._released - len(self._finished)
        return f"<OrderedRelease {running} running, {len(self._finished)} finished and waiting>"


class Answers:
    """The requests of a model that have no final answer yet, from instances to sinks.

    Args:
        credit: Grants decoupled models credit for the responses that sinks have taken.
        is_ordered: Whether answers are held back until all earlier requests are answered.

    Attributes:
        running: The number of requests sent to instances whose final answer was not passed on yet.
        is_ordered: Whether requests need a ticket.
    """

    __slots__ = ("_order", "credit", "is_ordered", "running")

    def __init__(self, credit: ResponseCredit, *, is_ordered: bool) -> None:
        self.running = 0
        self.is_ordered = is_ordered
        self.credit = credit
        self._order: OrderedRelease[tuple[Inference, Outcome | ChunkRun]] | None = None
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

    def pass_on_burst(self, inference: Inference, burst: ResponseBurst) -> None:
        """Tell the sink of a request about many responses, none of which is the last one."""
        deliver_burst(inference, burst)
        self.credit.on_burst_taken(inference, burst.count)

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
        order: OrderedRelease[tuple[Inference, Outcome | ChunkRun]],
        batch: RunningBatch,
        outcomes: list[Outcome],
    ) -> None:
        inferences = batch.inferences
        results: list[Outcome | ChunkRun] = [*outcomes]
        for run in batch.answered:
            results += run.split()
        for result in results:
            inference = inferences[result.position]
            for released in order.complete(inference.ticket, (inference, result)):
                self._release(*released)

    def _release(self, inference: Inference, result: Outcome | ChunkRun) -> None:
        self.running -= 1  # ordered models have one response for each request
        if isinstance(result, Outcome):
            deliver(inference, result)
        else:
            deliver_run([inference], result)


class ResponseCredit:
    """Grants instances credit for the responses that the sinks of their requests have taken."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def pause(self, inference: Inference) -> None:
        """Grant no credit until `resume`: the sink is behind with its responses."""
        inference.is_paused = True

    def resume(self, inference: Inference) -> None:
        """Grant credit again: the sink has caught up."""
        inference.is_paused = False
        self._grant(inference)

    def on_taken(self, inference: Inference, outcome: Outcome) -> None:
        """Count a response, not the last one, that the sink has taken."""
        self._count_taken(inference, 1, _size_of(outcome))

    def on_burst_taken(self, inference: Inference, count: int) -> None:
        """Count small responses that the sink has taken."""
        self._count_taken(inference, count, 0)

    def _count_taken(self, inference: Inference, count: int, size: int) -> None:
        inference.taken_count += count
        if inference.response_count == count:
            # Grant credit for the second response two iterations of the event loop later, after the
            # first was written; granting it at once delayed the first by 1 to 5 ms.
            self._loop.call_soon(self._loop.call_soon, self._grant, inference)
        elif is_grant_due(inference.taken_count, size):
            self._grant(inference)

    def _grant(self, inference: Inference) -> None:
        count = inference.taken_count
        if count and not inference.is_paused and inference.instance is not None:
            inference.instance.grant(inference, count)
            inference.taken_count = 0


def _size_of(outcome: Outcome) -> int:
    response = outcome.response
    outputs = () if response is None else response.outputs
    return sum([len(output.data) for output in outputs if output.data])
