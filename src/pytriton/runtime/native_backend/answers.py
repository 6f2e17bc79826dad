# SPDX-License-Identifier: Apache-2.0
"""Makes messages of what a backend answered, without I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.base.errors import InternalError, ServerError, sendable_text
from pytriton.runtime.native_backend.outputs import BackendOutput, add_column, are_alike
from pytriton.runtime.transport.frames import BatchResult, ResponseItem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.base.messages import ParameterValue
    from pytriton.runtime.native_backend.requests import BackendRequest
    from pytriton.runtime.native_backend.runs import BatchRun
    from pytriton.runtime.transport.channel import Payload
    from pytriton.runtime.transport.refs import TensorRef

NOT_ANSWERED = "the backend released the request without a final response"


class BackendResponse:
    """A response that the backend makes."""

    __slots__ = ("error", "handles", "outputs", "parameters", "request")

    def __init__(self, request: BackendRequest) -> None:
        self.request = request
        self.outputs: list[BackendOutput] = []
        self.handles: list[int] = []  # of its outputs
        self.parameters: dict[str, ParameterValue] | None = None
        self.error: ServerError | None = None


def check_outputs(response: BackendResponse) -> ServerError | None:
    """Returns an error if an output cannot be sent."""
    try:
        for output in response.outputs:
            output.check()
    except ServerError as error:
        return error
    return None


def make_item(
    request: BackendRequest, response: BackendResponse | None, is_final: bool, payload: Payload
) -> ResponseItem:
    """Returns one response, one error, or an end without tensors."""
    batch, position = request.run.execute.batch, request.position
    if response is None:
        return ResponseItem(batch, position, None, is_final)
    if response.error is not None:
        return _error_item(request, response.error, is_final=is_final)
    wanted = request.run.execute.outputs.get(position)
    refs = [
        output.add_to(payload)
        for output in response.outputs
        if wanted is None or output.name in wanted
    ]
    refs += _take_states(request, payload)
    return ResponseItem(batch, position, refs, is_final, parameters=response.parameters)


def make_single_item(request: BackendRequest, payload: Payload) -> ResponseItem:
    """Returns the only response to a request of a model that is not decoupled, or an error."""
    if request.is_rescheduled:
        return ResponseItem(request.run.execute.batch, request.position, is_rescheduled=True)
    if not request.is_ended:
        return _error_item(request, InternalError(NOT_ANSWERED))
    count = request.answer_count
    if count > 1:
        return _error_item(request, InternalError(f"expected a single response, got {count}"))
    return make_item(request, request.answer, True, payload)


def _error_item(
    request: BackendRequest, error: ServerError, *, is_final: bool = True
) -> ResponseItem:
    batch, position, text = (
        request.run.execute.batch,
        request.position,
        sendable_text(error.message),
    )
    return ResponseItem(batch, position, None, is_final, text, int(error.code))


def _take_states(request: BackendRequest, payload: Payload) -> list[TensorRef]:
    states, request.states = request.states, None
    return [state.add_to(payload) for state in (states or {}).values()]


def batch_columns(requests: Sequence[BackendRequest]) -> list[list[BackendOutput]] | None:
    """Returns the outputs of a whole batch, if each can be sent as one tensor; otherwise None.

    For that, every request must have one final response with the same outputs, which may differ
    only in their number of rows.
    """
    table = []
    for request in requests:
        response: BackendResponse | None = request.answer
        if response is None or request.answer_count != 1 or not request.is_ended:
            return None
        if request.is_rescheduled:
            return None
        if response.error is not None or response.parameters:
            return None
        outputs = response.outputs
        if request.states:
            outputs = [*outputs, *request.states.values()]
        table.append(outputs)
    width = len(table[0])
    if len(table) == 1:
        return [[output] for output in table[0]]
    if any(len(outputs) != width for outputs in table):
        return None
    columns = [list(column) for column in zip(*table, strict=True)]
    rows = requests[0].run.execute.rows
    return columns if all(are_alike(column, rows) for column in columns) else None


def make_batch_result(
    run: BatchRun,
    times_ns: tuple[int, int],
    columns: Sequence[Sequence[BackendOutput]],
    payload: Payload,
) -> BatchResult:
    """Returns the frame with a response to each request; an output holds the whole batch."""
    refs = [
        column[0].add_to(payload)
        if len(column) == 1
        else add_column(payload, column, run.lanes.get(column[0].name), run.row_count)
        for column in columns
    ]
    return BatchResult(run.execute.batch, *times_ns, refs)
