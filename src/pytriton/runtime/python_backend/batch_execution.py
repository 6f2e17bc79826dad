# SPDX-License-Identifier: Apache-2.0
"""Calls a backend's `execute_batch` with a whole batch, and sends what it returns or raises.

There are no objects for single requests: the arrays are those of the message, and the answer is one
message with an array for each output.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from pytriton.base.errors import ErrorCode, ServerError, sendable_text
from pytriton.runtime.pb_utils.batch import Batch
from pytriton.runtime.python_backend import answers
from pytriton.runtime.python_backend.failure_text import RuleError, describe_fully, raised_at
from pytriton.runtime.python_backend.whole_batches import (
    checked_outputs,
    datatype_of,
    parts_of,
    wanted_by_any,
)
from pytriton.runtime.transport.arena import block_bytes
from pytriton.runtime.transport.frames import (
    BatchFailure,
    BatchResult,
    Execute,
    ResponseItem,
    Responses,
)
from pytriton.runtime.transport.payload import INLINE_TENSOR_BYTES, add_array

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from pytriton.base.dtypes import DataType
    from pytriton.runtime.python_backend.batch_run import BatchRegistry
    from pytriton.runtime.python_backend.runtime import WorkerRuntime
    from pytriton.runtime.transport.channel import Payload, Received


class BatchExecution:
    """Runs the batches of one backend.

    Args:
        model: has `execute_batch`.
        runs: what all batches of the instance have in common.
        runtime: the model's environment.
        declared: the outputs and states of the model, with their datatypes.
    """

    is_async = False

    def __init__(
        self,
        model: Any,
        runs: BatchRegistry,
        runtime: WorkerRuntime,
        declared: Mapping[str, DataType | None],
    ) -> None:
        self._execute_batch = model.execute_batch
        self._output_names = runs.output_names
        self._is_batching = runs.is_batching
        self._outbox = runs.outbox
        self._runtime = runtime
        self._declared = declared

    def run(self, received: Received) -> None:
        """Call the backend with a batch; the batch is answered whatever the backend does.

        Raises:
            ConnectionError: The connection to the server has ended.
        """
        execute = received.frame
        assert isinstance(execute, Execute)
        started_ns = time.monotonic_ns()
        self._runtime.set_batch(execute.batch, execute.ids or None)
        try:
            self._run(received, execute, started_ns)
        except ConnectionError:
            raise
        except BaseException as error:  # noqa: BLE001  all that a model raises is sent as an error
            self._fail(execute, started_ns, error)
        finally:
            self._runtime.set_batch(0)

    def _run(self, received: Received, execute: Execute, started_ns: int) -> None:
        batch = self._make_batch(received, execute)
        outputs = self._execute_batch(batch)
        finished_ns = time.monotonic_ns()
        # In a new dict: if the backend keeps its own, its arrays are copied.
        outputs = checked_outputs(outputs, batch, self._declared, is_batching=self._is_batching)
        batch.inputs = {}  # an output may be an input's array, which is not copied if it is alone
        times_ns = (started_ns, finished_ns)
        if batch.failures or any(isinstance(each, list) for each in outputs.values()):
            make = functools.partial(self._make_responses, execute, batch, outputs, times_ns)
            self._outbox.send(make)
        else:
            self._outbox.send(functools.partial(self._make_result, execute, outputs, times_ns))

    def _make_batch(self, received: Received, execute: Execute) -> Batch:
        refs = execute.inputs
        return Batch(
            {ref.name: received.array(ref) for ref in refs},
            execute.rows,
            wanted_by_any(execute, self._output_names),
            shapes={ref.name: ref.shapes for ref in refs if ref.shapes},
            ids=execute.ids,
            parameters=execute.parameters,
            allocate=self._allocate,
        )

    def _allocate(self, size: int) -> NDArray[np.uint8] | None:
        if size <= INLINE_TENSOR_BYTES:
            return None  # it will be inside the message
        block = self._outbox.allocate(size)
        return None if block is None else block_bytes(block)

    def _make_result(
        self,
        execute: Execute,
        outputs: dict[str, Any],
        times_ns: tuple[int, int],
        payload: Payload,
    ) -> BatchResult:
        rows = execute.rows if self._is_batching else None
        refs = [
            add_array(payload, outputs, name, datatype_of(outputs[name]), rows) for name in outputs
        ]
        return BatchResult(execute.batch, *times_ns, refs)

    def _make_responses(
        self,
        execute: Execute,
        batch: Batch,
        outputs: dict[str, Any],
        times_ns: tuple[int, int],
        payload: Payload,
    ) -> Responses:
        """Returns a response for each request, for those that have nothing in common."""
        items = [ResponseItem(execute.batch, position, []) for position in range(len(execute.rows))]
        for name, output in outputs.items():
            dtype = datatype_of(output)
            parts = parts_of(output, execute.rows, is_batching=self._is_batching)
            for position, part in enumerate(parts):
                wanted = execute.outputs.get(position, self._output_names)
                refs = items[position].outputs
                if refs is not None and name in wanted and position not in batch.failures:
                    refs.append(add_array(payload, {name: part}, name, dtype))
        for position, (text, code) in batch.failures.items():
            items[position] = ResponseItem(
                execute.batch, position, error=sendable_text(text), error_code=int(code)
            )
        return Responses(*times_ns, items, returned_batch=execute.batch)

    def _fail(self, execute: Execute, started_ns: int, error: BaseException) -> None:
        """Fail the whole batch; a `ServerError` has the text and the code for the clients."""
        if isinstance(error, ServerError):
            text, code = sendable_text(error.message), int(error.code)
        else:
            text, code = answers.failure_text(self._name, error), int(ErrorCode.INTERNAL)
            logged = answers.failure_text(self._name, describe_fully(error))
            self._runtime.log("ERROR", logged, *raised_at(error))
        times_ns = (started_ns, time.monotonic_ns())
        try:
            self._send_failure(BatchFailure(execute.batch, *times_ns, text, code))
        except OSError:
            raise
        except Exception as failure:  # noqa: BLE001  no memory for a long text: send a short one
            text = answers.failure_text(
                self._name, RuleError(f"{type(failure).__name__}: {failure}")
            )
            self._send_failure(BatchFailure(execute.batch, *times_ns, text, code))

    def _send_failure(self, frame: BatchFailure) -> None:
        self._outbox.send(lambda _: frame)

    @property
    def _name(self) -> str:
        return self._runtime.instance_name
