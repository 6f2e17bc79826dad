# SPDX-License-Identifier: Apache-2.0
"""Makes the requests for `execute` from a batch; their tensors are views of it, not copies."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from pytriton.runtime.pb_utils.request import InferenceRequest
from pytriton.runtime.pb_utils.tensor import Tensor
from pytriton.runtime.python_backend.batch_run import RunContext
from pytriton.runtime.transport.frames import RequestDetails

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from pytriton.runtime.python_backend.batch_run import BatchRegistry, BatchRun
    from pytriton.runtime.transport.channel import Received

_NO_DETAILS = RequestDetails()


def make_requests(received: Received, run: BatchRun, runs: BatchRegistry) -> list[InferenceRequest]:
    """Returns the requests of a batch, in order."""
    execute = run.execute
    names = [ref.name for ref in execute.inputs]
    arrays = [received.array(ref) for ref in execute.inputs]
    count = len(execute.rows)
    tables: Iterable[Sequence[NDArray[Any]]]
    if count == 1 or not runs.is_batching:
        tables = [arrays]
    elif arrays:
        tables = zip(
            *[
                _cut_ragged(array, ref.shapes) if ref.shapes else _cut(array, execute.rows)
                for array, ref in zip(arrays, execute.inputs, strict=True)
            ],
            strict=True,
        )
    else:
        tables = [[]] * count
    output_names = runs.output_names
    is_decoupled = runs.is_decoupled
    make_tensor = Tensor.from_array
    requests = []
    for position, table in enumerate(tables):
        details = execute.details.get(position, _NO_DETAILS)
        requests.append(
            InferenceRequest.received(
                list(map(make_tensor, names, table)),
                execute.outputs.get(position, output_names),
                execute.ids.get(position, ""),
                details.correlation_id,
                details.flags,
                details.timeout_us,
                execute.parameters.get(position),
                execute.traces.get(position),
                RunContext(run, position),
                is_decoupled,
            )
        )
    return requests


def _cut(array: NDArray[Any], rows: list[int]) -> list[NDArray[Any]]:
    """Split a batch into the rows of each request."""
    count = rows[0]
    if rows.count(count) == len(rows):
        # Takes half as long as slicing.
        return list(array.reshape(len(rows), count, *array.shape[1:]))
    parts = []
    at = 0
    for count in rows:
        parts.append(array[at : at + count])
        at += count
    return parts


def _cut_ragged(array: NDArray[Any], shapes: list[tuple[int, ...]]) -> list[NDArray[Any]]:
    """Split all elements of a batch into the tensor of each request."""
    parts = []
    at = 0
    for shape in shapes:
        end = at + prod(shape)
        parts.append(array[at:end].reshape(shape))
        at = end
    return parts
