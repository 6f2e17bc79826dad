# SPDX-License-Identifier: Apache-2.0
"""Checks what `execute` returns and sends, and makes frames of it, without I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytriton.runtime.pb_utils.failures import TritonModelException
from pytriton.runtime.pb_utils.request import RELEASE_RESCHEDULE
from pytriton.runtime.pb_utils.response import InferenceResponse
from pytriton.runtime.python_backend.failure_text import RuleError, describe
from pytriton.runtime.python_backend.tensor_payload import add_batch_output, add_single, add_tensor
from pytriton.runtime.transport.frames import BatchResult, ResponseItem

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pytriton.runtime.pb_utils.request import InferenceRequest
    from pytriton.runtime.pb_utils.tensor import Tensor
    from pytriton.runtime.transport.channel import Payload

SENDER_CLOSED = "Unable to send response. Response sender has been closed."


def failure_text(instance_name: str, error: BaseException | str) -> str:
    """Returns the error message for all requests of a batch whose `execute` raised."""
    text = error if isinstance(error, str) else describe(error)
    return f"Failed to process the request(s) for model '{instance_name}', message: {text}"


def check_decoupled_return(result: Any, instance_name: str) -> None:
    """Check the result of a decoupled model, which responds only through senders.

    Raises:
        RuleError: The result is not None.
    """
    if result is not None:
        raise RuleError(
            f"Python model '{instance_name}' is using the decoupled mode and the execute function"
            " must return None."
        )


def returned_responses(
    result: Any, requests: Sequence[InferenceRequest]
) -> Sequence[InferenceResponse | None]:
    """Returns the response to each request; None if only its sender may respond.

    Raises:
        RuleError: `execute` of a model that is not decoupled must not return this.
    """
    if result is None:
        return [None] * len(requests)
    if not isinstance(result, list):
        raise RuleError(f"Expected a list in the execute return, found type '{type(result)}'.")
    if len(result) != len(requests):
        raise RuleError(
            "Number of InferenceResponse objects do not match the number of InferenceRequest"
            f" objects. InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size"
            f" is:{len(result)}\n"
        )
    for request, response in zip(requests, result, strict=True):
        if response is not None:
            _check_response(request, response)
    return result


def _check_response(request: InferenceRequest, response: Any) -> None:
    if request.release_flags == RELEASE_RESCHEDULE:
        raise RuleError(
            "Expected a None object in the execute function return list for reschduled request,"
            f" found type '{type(response)}'."
        )
    if not isinstance(response, InferenceResponse):
        raise RuleError(
            "Expected an 'InferenceResponse' object in the execute function return list, found"
            f" type '{type(response)}'."
        )
    if request.sender is not None:
        try:
            request.sender.count_returned()
        except TritonModelException as error:
            raise RuleError(str(error)) from error


def batch_outputs(
    responses: Sequence[InferenceResponse | None],
    requests: Sequence[InferenceRequest],
    rows: Sequence[int],
) -> list[list[Tensor]] | None:
    """Returns the outputs of a whole batch, if each can be sent as one tensor; otherwise None.

    For that, every request must have a response with the same outputs, which may differ only in
    their number of rows, and all clients must request the same outputs.
    """
    names = requests[0].output_names
    table = []
    for response, request in zip(responses, requests, strict=True):
        if response is None or response.failure is not None or response.parameter_values:
            return None
        if request.output_names is not names and request.output_names != names:
            return None
        table.append(response.tensors)
    width = len(table[0])
    if len(table) > 1 and any(len(tensors) != width for tensors in table):
        return None
    columns = []
    for column in zip(*table, strict=True):
        if len(column) > 1 and not _are_alike(column, rows):
            return None
        if column[0].name() in names:
            columns.append(list(column))
    return columns


def _are_alike(tensors: Sequence[Tensor], rows: Sequence[int]) -> bool:
    name = tensors[0].name()
    array = tensors[0].as_numpy()
    dtype, tail = array.dtype, array.shape[1:]
    shapes = {count: (count, *tail) for count in set(rows)}
    for tensor, count in zip(tensors, rows, strict=True):
        array = tensor.as_numpy()
        if array.shape != shapes[count] or array.dtype != dtype or tensor.name() != name:
            return False
    return True


def make_batch_result(
    batch: int,
    rows: Sequence[int],
    times_ns: tuple[int, int],
    columns: list[list[Tensor]],
    payload: Payload,
) -> BatchResult:
    """Returns the frame with a response to each request; an output holds the whole batch."""
    if len(rows) == 1:
        refs = [add_single(payload, column) for column in columns]
    else:
        row_count = sum(rows)
        refs = [add_batch_output(payload, tensors, row_count) for tensors in columns]
    return BatchResult(batch, *times_ns, refs)


def make_item(
    payload: Payload,
    batch: int,
    position: int,
    response: InferenceResponse | None,
    names: Collection[str],
    *,
    is_final: bool = True,
) -> ResponseItem:
    """Returns one response, one error, or an end without tensors."""
    if response is None:
        return ResponseItem(batch, position, None, is_final)
    if (failure := response.failure) is not None:
        return ResponseItem(batch, position, None, is_final, failure.message(), int(failure.code()))
    refs = [add_tensor(payload, tensor) for tensor in response.tensors if tensor.name() in names]
    return ResponseItem(
        batch, position, refs, is_final, parameters=response.parameter_values or None
    )
