# SPDX-License-Identifier: Apache-2.0
"""Calls a backend's `execute_batch` with a whole batch, and sends its outputs or its error.

There are no objects for single requests: the arrays are those of the message, and the answer is one
message with an array for each output.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.base.device_copies import is_on_gpu
from pytriton.base.dtypes import BY_CONFIG_NAME, BYTES, DataType, from_numpy
from pytriton.base.errors import InvalidArgumentError, ServerError, sendable_text
from pytriton.runtime.backend.batch import cut
from pytriton.runtime.backend.failure_text import RuleError
from pytriton.runtime.cuda.device_array import DeviceArray, gather, write_to_host
from pytriton.runtime.pb_utils.batch import Batch
from pytriton.runtime.pb_utils.gpu_arrays import GpuArray, import_array
from pytriton.runtime.pb_utils.response import InferenceResponse, TritonError
from pytriton.runtime.pb_utils.tensor import DeviceTensor, Tensor
from pytriton.runtime.python_backend import answers
from pytriton.runtime.python_backend.replies import place
from pytriton.runtime.transport.frames import (
    BatchResult,
    Execute,
    ResponseItem,
    ResponsesFrame,
)
from pytriton.runtime.transport.payload import add_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pytriton.runtime.backend.batch import WorkerBatch
    from pytriton.runtime.python_backend.device_tensors import DeviceTensors
    from pytriton.runtime.python_backend.runtime import WorkerRuntime
    from pytriton.runtime.transport.channel import Payload
    from pytriton.runtime.transport.refs import TensorRef

FUNCTION = "execute_batch"


def takes_whole_batches(model: Any, *, is_backend: bool, is_decoupled: bool) -> bool:
    """Returns whether a model is called with whole batches.

    A model.py may have written a function of this name for itself, so there `execute` counts if it
    has both. Only `execute` can send several responses.

    Raises:
        RuleError: `execute_batch` is a coroutine function.
        InvalidArgumentError: The model is decoupled, and its backend has no other function.
    """
    function = getattr(model, FUNCTION, None)
    if function is not None and is_decoupled and not hasattr(model, "execute"):
        raise InvalidArgumentError(
            "the model is decoupled, but its backend sends one response for each request: it has"
            f" `{FUNCTION}` and no `execute`"
        )
    if function is None or is_decoupled or (hasattr(model, "execute") and not is_backend):
        return False
    if inspect.iscoroutinefunction(function):
        raise RuleError(f"{FUNCTION} must not be a coroutine function: use `async def execute`.")
    return True


def declared_outputs(model_config: str, names: Sequence[str]) -> dict[str, DataType | None]:
    """Returns the datatypes of a model's outputs and states; None for one without declaration."""
    config = json.loads(model_config)
    kinds = {each["name"]: each.get("data_type") for each in config.get("output", ())}
    for state in config.get("sequence_batching", {}).get("state", ()):
        kinds.setdefault(state.get("output_name"), state.get("data_type"))
    return {name: BY_CONFIG_NAME.get(kinds.get(name, "")) for name in names}


def wanted_by_any(execute: Execute, names: Sequence[str]) -> Sequence[str]:
    """Returns those of all outputs that at least one request wants."""
    if len(execute.outputs) < len(execute.rows):
        return names
    wanted = {name for each in execute.outputs.values() for name in each}
    return [name for name in names if name in wanted]


def checked_outputs(
    result: Any,
    batch: Batch,
    declared: Mapping[str, DataType | None],
    *,
    is_batching: bool,
) -> dict[str, Any]:
    """Returns the wanted outputs: an array of all rows, or a list with an array for each request.

    Raises:
        RuleError: `execute_batch` must not return this.
    """
    if len(batch.failures) == len(batch.rows):
        return {}
    if type(result) is not dict and not isinstance(result, Mapping):
        raise RuleError(f"Expected a dict of arrays from {FUNCTION}, found type '{type(result)}'.")
    row_count = sum(batch.rows) if is_batching else None
    outputs: dict[str, Any] = {}
    for name, value in result.items():
        if name not in declared:
            raise RuleError(
                f"Unexpected output '{name}' from {FUNCTION}, the model's outputs are"
                f" {list(declared)}."
            )
        if name not in batch.output_names:
            continue
        if isinstance(value, (list, tuple)):  # a union would be made anew each time
            outputs[name] = _checked_list(name, value, batch, declared[name])
        else:
            outputs[name] = _checked(name, value, declared[name])
            if row_count is not None and value.shape[:1] != (row_count,):
                raise RuleError(
                    f"Expected {row_count} rows in output '{name}' of {FUNCTION}, one for each row"
                    f" of the batch, found shape {value.shape}."
                )
    return outputs


def _checked_list(
    name: str, value: Sequence[Any], batch: Batch, expected: DataType | None
) -> list[NDArray[Any]]:
    if len(value) != len(batch.rows):
        raise RuleError(
            f"Expected {len(batch.rows)} arrays in output '{name}' of {FUNCTION}, one for each"
            f" request, found {len(value)}."
        )
    return [_checked(name, array, expected) for array in value]


def _checked(name: str, array: Any, expected: DataType | None) -> Any:
    """Returns an array in the byte order of messages."""
    if not isinstance(array, (np.ndarray, DeviceArray)):
        raise RuleError(
            f"Expected a numpy array as output '{name}' of {FUNCTION}, found type '{type(array)}'."
        )
    kind = from_numpy(array.dtype)
    if kind is None or (expected is not None and kind is not expected):
        wanted = "one of Triton's datatypes" if expected is None else expected.config_name
        raise RuleError(
            f"Expected {wanted} in output '{name}' of {FUNCTION}, found an array of {array.dtype}."
        )
    if isinstance(array, np.ndarray) and kind is BYTES:
        _check_texts(name, array)
    elif array.dtype != kind.numpy:
        return array.astype(kind.numpy)  # type: ignore[union-attr]  # of GPUs, types are the same
    return array


def _check_texts(name: str, array: NDArray[Any]) -> None:
    if array.dtype.kind == "O":
        for element in set(map(type, array.ravel().tolist())):
            if not issubclass(element, bytes | str):
                raise RuleError(
                    f"Expected bytes or str in output '{name}' of {FUNCTION}, found an element of"
                    f" type '{element}'."
                )


def datatype_of(output: Any) -> DataType:
    """Returns the datatype of an output that was checked."""
    array = output[0] if isinstance(output, list) else output
    kind = from_numpy(array.dtype)
    assert kind is not None, "it was checked before"
    return kind


def parts_of(output: Any, rows: Sequence[int], *, is_batching: bool) -> Sequence[NDArray[Any]]:
    """Returns each request's part of an output."""
    if isinstance(output, list):
        return output
    return cut(output, rows) if is_batching else [output]


def _imported(value: Any) -> Any:
    """Returns an output, or each of a list, with arrays of ours in place of those on a GPU."""
    if isinstance(value, (list, tuple)):
        return [_imported(each) for each in value]
    if isinstance(value, np.ndarray) or not is_on_gpu(value):
        return value
    return import_array(value)


def _tensor(name: str, array: Any) -> Tensor:
    if isinstance(array, DeviceArray):
        return DeviceTensor.of_device(name, array)
    # Not `ascontiguousarray`, which gives a scalar a dimension.
    return Tensor.from_array(name, np.asarray(array, order="C"))


class BatchExecution:
    """Runs the batches of a model that has `execute_batch`.

    `declared` are its outputs and states, with their datatypes.
    """

    is_async = False

    def __init__(
        self,
        model: Any,
        runtime: WorkerRuntime,
        device: DeviceTensors,
        declared: Mapping[str, DataType | None],
    ) -> None:
        self._execute_batch = model.execute_batch
        self._runtime = runtime
        self._declared = declared
        self._device = device
        # The model takes inputs, and returns outputs, in GPU memory; most do not.
        self.takes_device_memory = bool(getattr(model, "takes_gpu_arrays", False))
        device.keeps_on_device = self.takes_device_memory

    def run(self, batch: WorkerBatch) -> None:
        """Call the backend with a batch; see `Backend`."""
        try:
            whole = self._make_batch(batch)
            outputs = self._execute_batch(whole)
            times_ns = (batch.started_ns, time.monotonic_ns())
            if self.takes_device_memory and isinstance(outputs, Mapping):
                outputs = {name: _imported(value) for name, value in outputs.items()}
            # In a new dict: if the backend keeps its own, its arrays are copied.
            outputs = checked_outputs(
                outputs, whole, self._declared, is_batching=batch.batches.is_batching
            )
            whole.inputs = {}  # an output may be an input's array; if it is alone, it is not copied
            if self.takes_device_memory:
                if batch.execute.devices or batch.execute.device_wishes:
                    self._send_placed(batch, whole, outputs, times_ns)
                    return
                outputs = {name: self._on_host(batch, value) for name, value in outputs.items()}
            is_whole = not whole.failures and list not in map(type, outputs.values())
            make = _make_result if is_whole else _make_responses
            batch.answer(functools.partial(make, batch, whole, outputs, times_ns))
        except ConnectionError:
            raise
        except BaseException as error:  # noqa: BLE001  all that a model raises is sent as an error
            if not isinstance(error, ServerError):  # that was meant for the clients
                self._runtime.log_failure(error)
            batch.fail(error)

    def _make_batch(self, batch: WorkerBatch) -> Batch:
        execute, received = batch.execute, batch.received
        refs = execute.inputs
        on_device = execute.devices[0].inputs if execute.devices else ()
        try:
            inputs = {
                ref.name: self._joined(ref, execute)
                if ref.name in on_device
                else received.array(ref)
                for ref in refs
            }
        except BaseException:
            self._device.end_unopened_inputs(execute.devices)
            raise
        return Batch(
            inputs,
            execute.rows,
            wanted_by_any(execute, batch.batches.output_names),
            shapes={ref.name: ref.shapes for ref in refs if ref.shapes},
            ids=execute.ids,
            parameters=execute.parameters,
            allocate=batch.allocate,
        )

    def _joined(self, ref: TensorRef, execute: Execute) -> Any:
        """Returns an input that is in GPU memory, of all requests, there."""
        tensors = self._device.column(ref, execute.devices, execute.rows)
        arrays = [tensor.to_wire()[2] for tensor in tensors]
        if len(arrays) == 1:
            return GpuArray.over(arrays[0])
        if ref.shapes:
            for array in arrays:
                array.shape = (math.prod(array.shape),)
        return GpuArray.over(gather(arrays, arrays[0].device))

    def _on_host(self, batch: WorkerBatch, value: Any) -> Any:
        """Returns an output on the host, a large one where the server reads it."""
        if isinstance(value, list):
            return [self._on_host(batch, each) for each in value]
        if not isinstance(value, DeviceArray):
            return value
        memory = batch.allocate(value.nbytes)
        if memory is None:
            return value.copy()
        memory = memory[: value.nbytes]
        write_to_host((value,), memory.data)
        return memory.view(value.dtype).reshape(value.shape)

    def _send_placed(
        self,
        batch: WorkerBatch,
        whole: Batch,
        outputs: dict[str, Any],
        times_ns: tuple[int, int],
    ) -> None:
        """Send a response for each request, whose outputs may stay in GPU memory."""
        responses: list[InferenceResponse] = []
        try:
            self._add_placed(batch, whole, outputs, responses)
            answered = list(enumerate(responses))
            number = batch.execute.batch
            batch.answer(
                functools.partial(answers.make_responses, batch, times_ns, answered, number)
            )
        except BaseException:
            self._device.take_back_responses(responses)
            raise

    def _add_placed(
        self,
        batch: WorkerBatch,
        whole: Batch,
        outputs: dict[str, Any],
        responses: list[InferenceResponse],
    ) -> None:
        """Add a response for each request, with outputs in GPU memory that belong there."""
        rows, is_batching = batch.execute.rows, batch.batches.is_batching
        parts = {
            name: parts_of(output, rows, is_batching=is_batching)
            for name, output in outputs.items()
        }
        for position in range(len(rows)):
            if position in whole.failures:
                text, code = whole.failures[position]
                failure = TritonError(text, code)
                responses.append(InferenceResponse.received([], failure, None))
                continue
            tensors = [_tensor(name, each[position]) for name, each in parts.items()]
            response = InferenceResponse.received(tensors, None, None)
            responses.append(place(batch, position, response, self._device))


def _make_result(
    batch: WorkerBatch,
    whole: Batch,
    outputs: dict[str, Any],
    times_ns: tuple[int, int],
    payload: Payload,
) -> BatchResult:
    execute = batch.execute
    assert not whole.failures, "each request has an answer of its own then"
    rows = execute.rows if batch.batches.is_batching else None
    refs = [add_array(payload, outputs, name, datatype_of(outputs[name]), rows) for name in outputs]
    return BatchResult(execute.batch, *times_ns, refs)


def _make_responses(
    batch: WorkerBatch,
    whole: Batch,
    outputs: dict[str, Any],
    times_ns: tuple[int, int],
    payload: Payload,
) -> ResponsesFrame:
    """Returns a response for each request, for those that have nothing in common."""
    number = batch.execute.batch
    items = [ResponseItem(number, position, []) for position in range(len(batch.execute.rows))]
    for name, output in outputs.items():
        dtype = datatype_of(output)
        parts = parts_of(output, batch.execute.rows, is_batching=batch.batches.is_batching)
        for position, part in enumerate(parts):
            refs = items[position].outputs
            is_wanted = name in batch.names(position) and position not in whole.failures
            if refs is not None and is_wanted:
                refs.append(add_array(payload, {name: part}, name, dtype))
    for position, (text, code) in whole.failures.items():
        items[position] = ResponseItem(
            number, position, error=sendable_text(text), error_code=int(code)
        )
    return ResponsesFrame(*times_ns, items, returned_batch=number)
