# SPDX-License-Identifier: Apache-2.0
"""One call of a user's callable: converts a batch to arguments, and the result to a frame.

Apart from the call itself this is pure: it has no threads and no sockets.
"""

from __future__ import annotations

import functools
import itertools
import logging
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs

from pytriton.base.dtypes import BYTES, DataType
from pytriton.base.errors import ErrorCode, InputValueError, ServerError, sendable_text
from pytriton.base.failure_log import Failure, FailureLog, message_of
from pytriton.base.failure_records import FailureOrigin, origin_of
from pytriton.base.request_ids import current_prefix
from pytriton.base.user_frames import check_of, definition_of, user_frames, user_traceback
from pytriton.decorators import whole_batch_callable
from pytriton.exceptions import PyTritonUnrecoverableError, PyTritonValidationError
from pytriton.proxy.telemetry import end_span, start_span_from_remote
from pytriton.proxy.types import Request
from pytriton.runtime.backend.batch import cut
from pytriton.runtime.functions.bound_config import batch_hint
from pytriton.runtime.functions.output_validation import convert_output
from pytriton.runtime.transport.frames import BatchResult, Execute, ResponseItem, ResponsesFrame
from pytriton.runtime.transport.payload import add_array
from pytriton.runtime.transport.refs import TensorRef
from pytriton.runtime.transport.response_rows import SMALL_RESPONSE_BYTES, pack_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from pytriton.base.log_capture import LineSource
    from pytriton.runtime.backend.batch import WorkerBatch
    from pytriton.runtime.functions.bound_model import DeviceSide
    from pytriton.runtime.functions.output_validation import OutputValidator
    from pytriton.runtime.transport.channel import Payload
    from pytriton.runtime.transport.frames import Answer
    from pytriton.runtime.transport.response_rows import Structure

    # The structure of a response, the bytes of its outputs, and the number of all these bytes.
    PackedResponse = tuple[Structure, list[bytes], int]

logger = logging.getLogger(__name__)

_SPAN_NAME = "proxy_inference_callable"
_NOTHING: Mapping[int, str] = MappingProxyType({})


class RequestSpans:
    """The open spans of the batches that one instance works on."""

    def __init__(self) -> None:
        self._by_batch: dict[int, dict[int, Any]] = {}

    def start(self, execute: Execute) -> dict[int, Any]:
        """Start the spans of the traced requests of a batch; returns them by position."""
        spans = {
            position: start_span_from_remote(structs.asdict(context), _SPAN_NAME)
            for position, context in execute.traces.items()
        }
        self._by_batch[execute.batch] = spans
        return spans

    def end(self, execute: Execute, error: str | None = None) -> None:
        """End the spans of a batch that are still open."""
        for span in self._by_batch.pop(execute.batch, {}).values():
            end_span(span, error)


class FunctionCall:
    """Calls one inference callable with batches."""

    def __init__(
        self,
        instance_name: str,
        infer_func: Callable[..., Any],
        outputs: Mapping[str, DataType],
        validator: OutputValidator,
        *,
        batching: bool,
        failures: FailureLog | None = None,
        label: str = "",
        annotated_name: str = "",
        device: DeviceSide | None = None,
        inputs: Collection[str] = (),
    ) -> None:
        self._input_names = inputs
        self._device = device  # None: all tensors are on the host
        self.instance_name = instance_name
        self.infer_func = infer_func
        self.line_source: LineSource | None = None  # what the thread of its host works for
        self._failures = failures or FailureLog(write_failure)
        self._label = label or f"model '{instance_name}'"  # in the log
        self._annotated_name = annotated_name  # of a function with annotations
        self._outputs = outputs
        self._output_names = list(outputs)
        self._validator = validator
        self._batching = batching
        self._spans = RequestSpans()
        self._call_whole_batch = whole_batch_callable(infer_func) if batching else None
        self._check = check_of(infer_func)

    def run(self, batch: WorkerBatch) -> Callable[[Payload], Answer]:
        """Call the function; returns what makes the answer, whose tensors are in a payload."""
        execute, call_whole_batch = batch.execute, self._call_whole_batch
        wrong: Mapping[int, str] = _NOTHING
        try:
            # Rows of several requests on a GPU cannot be joined again, so they are not cut there.
            if call_whole_batch is None or (execute.traces and self._device is None):
                results = self.infer_func(self.requests(batch))
                if type(results) is not list and isinstance(results, Iterator):
                    results = only_result(results)
            else:
                if execute.traces:
                    self._spans.start(execute)
                outputs = call_whole_batch(self._inputs(batch), sum(execute.rows))
                return functools.partial(self._whole_answer, batch, outputs, time.monotonic_ns())
        except InputValueError:
            requests = self.requests(batch)
            wrong = self.wrong_values(requests)
            if not wrong:
                raise
            good = [each for position, each in enumerate(requests) if position not in wrong]
            results = self.infer_func(good) if good else []
        return self.answer_of(batch, results, wrong)

    def wrong_values(self, requests: list[Request]) -> dict[int, str]:
        """Returns why the callable cannot take some requests of a batch, by their positions.

        There are none in a batch of one request, whose error is its own.
        """
        wrong: dict[int, str] = {}
        if self._check is not None and len(requests) > 1:
            for position, request in enumerate(requests):
                try:
                    self._check(request)
                except InputValueError as error:  # noqa: PERF203  each request has its own
                    wrong[position] = _text(error)
        return wrong

    def _whole_answer(
        self,
        batch: WorkerBatch,
        outputs: Mapping[str, NDArray[Any]],
        finished_ns: int,
        payload: Payload,
    ) -> BatchResult:
        """Returns a response to each request; an output holds the whole batch."""
        execute = batch.execute
        if self._device is not None:
            outputs = self._device.outputs(outputs, payload)
        wanted = _wanted_by_any(execute) if execute.outputs else None
        outputs = self._validator.validate_batch(outputs, wanted)
        refs = [
            _add_output(payload, outputs, name, self._outputs[name], execute.rows)
            for name in outputs
            if name in self._outputs
        ]
        return BatchResult(execute.batch, batch.started_ns, finished_ns, refs)

    def _inputs(self, batch: WorkerBatch) -> dict[str, Any]:
        received, device = batch.received, self._device
        if device is not None:
            return {ref.name: device.input(received, ref) for ref in batch.execute.inputs}
        return {ref.name: received.array(ref) for ref in batch.execute.inputs}

    def requests(self, batch: WorkerBatch) -> list[Request]:
        """Return the arguments for a batch: for each request an object with views of its rows."""
        execute = batch.execute
        arrays = self._inputs(batch)
        spans = self._spans.start(execute) if execute.traces else {}
        if not self._batching or len(execute.rows) == 1:
            return [self._request(execute, 0, arrays, spans)]
        columns = [cut(array, execute.rows) for array in arrays.values()]
        cells = zip(*columns, strict=True) if columns else [()] * len(execute.rows)
        return [
            self._request(execute, position, dict(zip(arrays, parts, strict=True)), spans)
            for position, parts in enumerate(cells)
        ]

    def _request(
        self,
        execute: Execute,
        position: int,
        data: dict[str, NDArray[Any]],
        spans: Mapping[int, Any],
    ) -> Request:
        return Request(
            data,
            execute.parameters.get(position, {}),
            spans.get(position),
            execute.outputs.get(position, self._output_names),
        )

    def answer_of(
        self, batch: WorkerBatch, results: Any, wrong: Mapping[int, str] = _NOTHING
    ) -> Callable[[Payload], ResponsesFrame]:
        """Returns what makes the answer of the result of the callable.

        Requests with `wrong` values get an error, and the result is that for the others.
        """
        return functools.partial(self._responses, batch, results, time.monotonic_ns(), wrong)

    def _responses(
        self,
        batch: WorkerBatch,
        results: Any,
        finished_ns: int,
        wrong: Mapping[int, str],
        payload: Payload,
    ) -> ResponsesFrame:
        execute = batch.execute
        positions = None
        if wrong:
            positions = [each for each in range(len(execute.rows)) if each not in wrong]
        items = self.response_items(execute, results, payload, positions, is_final=True)
        if wrong:
            items += [
                ResponseItem(execute.batch, position, None, True, text, ErrorCode.INVALID_ARG)
                for position, text in wrong.items()
            ]
        return ResponsesFrame(batch.started_ns, finished_ns, items)

    def response_items(
        self,
        execute: Execute,
        results: Any,
        payload: Payload,
        positions: Sequence[int] | None = None,
        *,
        is_final: bool,
    ) -> list[ResponseItem]:
        """Convert a returned or yielded result to one response for each request, or for some."""
        count, wanted = len(execute.rows), execute.outputs
        if positions is None:
            positions = range(count)
        elif len(positions) < count:
            chosen = [wanted.get(position) for position in positions]
            count = len(positions)
            wanted = {index: names for index, names in enumerate(chosen) if names is not None}
        if self._device is not None and isinstance(results, list):
            results = [
                self._device.outputs(each, payload) if isinstance(each, Mapping) else each
                for each in results
            ]
        validated = self._validator.validate(results, count, wanted)
        return [
            ResponseItem(
                execute.batch, position, self._refs(execute, position, outputs, payload), is_final
            )
            for position, outputs in zip(positions, validated, strict=True)
        ]

    def packers(self, execute: Execute) -> list[ResponsePacker]:
        """Returns what packs the responses of a stream, for each request of its batch."""
        return [
            ResponsePacker(self._outputs, execute.outputs.get(position, self._outputs))
            for position in range(len(execute.rows))
        ]

    def pack(
        self, execute: Execute, results: Any, packers: list[ResponsePacker]
    ) -> list[PackedResponse] | None:
        """Convert a yielded result like `response_items`; returns None if it is not small.

        No name here is bound to an array: one to which only `results` refers is sent by reference.
        """
        if self._device is not None:  # they may be on a GPU
            return None
        packed = []
        if type(results) is list and len(results) == len(packers):
            for packer, outputs in zip(packers, results, strict=True):
                response = packer.pack_known(outputs)
                if response is None:
                    break
                packed.append(response)
            else:
                return packed
        validated = self._validator.validate(results, len(execute.rows), execute.outputs)
        packed = []
        for packer, outputs in zip(packers, validated, strict=True):
            response = packer.pack(outputs)
            if response is None:
                return None
            packed.append(response)
        return packed

    def _refs(
        self,
        execute: Execute,
        position: int,
        outputs: Mapping[str, NDArray[Any]],
        payload: Payload,
    ) -> list[TensorRef]:
        wanted = execute.outputs.get(position, self._outputs)
        return [
            _add_output(payload, outputs, name, self._outputs[name])
            for name in outputs
            if name in self._outputs and name in wanted
        ]

    def answers(
        self, results: Any, count: int, wanted: Mapping[int, Collection[str]]
    ) -> list[dict[str, NDArray[Any]]]:
        """Check the result for `count` requests; returns the outputs that each of them wants.

        Raises:
            ValueError: The result is not allowed.
        """
        validated = self._validator.validate(results, count, wanted)
        return [
            {
                name: convert_output(name, array, self._outputs[name])
                if array.dtype != self._outputs[name].numpy
                else array
                for name, array in outputs.items()
                if name in self._outputs and name in wanted.get(position, self._outputs)
            }
            for position, outputs in enumerate(validated)
        ]

    def origin(self, error: BaseException) -> FailureOrigin:
        """Return where an exception comes from, for the server's list of failures."""
        return origin_of(error, definition_of(self.infer_func))

    def end_spans(self, execute: Execute, error: str | None = None) -> None:
        """End the open spans of a batch that was answered."""
        if execute.traces:
            self._spans.end(execute, error)

    def error(self, execute: Execute, error: BaseException) -> tuple[str, ErrorCode]:
        """Return the text and the kind of an error for the clients of a batch.

        A wrong value is the mistake of its client, if that is the only one: no other is to blame.
        """
        if isinstance(error, InputValueError) and len(execute.rows) == 1:
            return _text(error), ErrorCode.INVALID_ARG
        if isinstance(error, ServerError):  # there was no room for the tensors of the batch
            logger.warning("%s%s: %s", current_prefix(), self._label, error)
            return sendable_text(error.message), error.code
        return self.error_text(error), ErrorCode.INTERNAL

    def error_text(self, error: BaseException) -> str:
        """Log an exception of the callable and return the error text for clients."""
        hint = batch_hint(self.infer_func, self._input_names, error)
        self._failures.add(self._label, error, definition_of(self.infer_func), hint)
        name, text = type(error).__name__, _text(error)
        message = f"{name}: {text}" if text else name
        if self._annotated_name:  # its users know nothing of instances
            return f"model '{self._annotated_name}' failed: {message}"
        return (
            f"Failed to process the request(s) for model '{self.instance_name}', message: {message}"
        )

    def log_raised_on_close(self, error: BaseException) -> None:
        """Log an exception that a callable raised when it was closed; no client waits for it."""
        self._failures.add(f"{self._label} when it was closed", error)


def write_failure(failure: Failure) -> None:
    """Write an exception of a user's callable to the log, or how often it was repeated."""
    error = failure.error
    exc_info = None
    # A wrong answer of the callable is found by our code, whose frames would tell nobody anything.
    if error is not None and (user_frames(error.__traceback__) or not _is_wrong_answer(error)):
        exc_info = (type(error), error, user_traceback(error))
    if logger.isEnabledFor(logging.ERROR):
        # The line has the place of the user's code, not of this call.
        file, line = (failure.frame.file, failure.frame.line) if failure.frame else (__file__, 0)
        arguments = (current_prefix(), failure.text)
        logger.handle(
            logger.makeRecord(logger.name, logging.ERROR, file, line, "%s%s", arguments, exc_info)
        )


def _is_wrong_answer(error: BaseException) -> bool:
    return isinstance(error, ValueError | PyTritonValidationError)


def _wanted_by_any(execute: Execute) -> set[str] | None:
    """Returns the outputs that any request of a batch wants; None if one wants all."""
    if len(execute.outputs) < len(execute.rows):
        return None
    return {name for names in execute.outputs.values() for name in names}


def only_result(results: Iterator[Any]) -> Any:
    """Returns the only response of a generator in a model that is not decoupled."""
    responses = list(itertools.islice(results, 2))
    if len(responses) != 1:
        got = "none" if not responses else "more than one"
        raise ValueError(
            "Expected a generator that yields exactly one response, as the model is not decoupled; "
            f"got {got}. Set decoupled=True in ModelConfig to send any number of responses."
        )
    return responses[0]


def _text(error: BaseException) -> str:
    """Returns the text of an exception of user code in a form that can be sent."""
    return sendable_text(message_of(error))


def is_unrecoverable(error: BaseException) -> bool:
    """Whether the exception requests that the server stops."""
    return isinstance(error, PyTritonUnrecoverableError)


def _add_output(
    payload: Payload,
    outputs: Mapping[str, NDArray[Any]],
    name: str,
    dtype: DataType,
    rows: list[int] | None = None,
) -> TensorRef:
    """Adds an output to the payload; `rows` is needed to split a whole batch of BYTES later."""
    if outputs[name].dtype != dtype.numpy:
        outputs = {name: convert_output(name, outputs[name], dtype)}
    return add_array(payload, outputs, name, dtype, rows)


class ResponsePacker:
    """Packs responses to one request, whose client wants the outputs `wanted`.

    The outputs of an earlier response are known. Whatever has the same names, types and shapes is
    as valid as they were, and needs no other check.
    """

    __slots__ = ("_declared", "_known", "_size", "_structure", "_wanted")

    def __init__(self, declared: Mapping[str, DataType], wanted: Collection[str]) -> None:
        self._declared = declared
        self._wanted = wanted
        self._known: list[tuple[str, np.dtype[Any], tuple[int, ...]]] = []
        self._structure: Structure = ()
        self._size = 0

    def pack_known(self, outputs: Any) -> PackedResponse | None:
        """Returns what rows need of a result; None if it is not like one that was packed."""
        known = self._known
        if type(outputs) is not dict or len(outputs) != len(known):
            return None
        data = []
        for (name, array), (expected, dtype, shape) in zip(outputs.items(), known, strict=True):
            if (
                name != expected
                or type(array) is not np.ndarray
                or array.dtype is not dtype
                or array.shape != shape
            ):
                return None
            data.append(array.tobytes())
        return self._structure, data, self._size

    def pack(self, outputs: Mapping[str, NDArray[Any]]) -> PackedResponse | None:
        """Returns what rows need of valid outputs; None if they are not small.

        Raises:
            ValueError: An output cannot be converted to its declared type.
        """
        types = []
        data = []
        known = []
        size = 0
        for name, array in outputs.items():
            dtype = self._declared.get(name)
            if dtype is None or name not in self._wanted:
                continue
            packed = _pack(name, array, dtype, SMALL_RESPONSE_BYTES - size)
            if packed is None:
                return None
            size += len(packed)
            data.append(packed)
            types.append((name, dtype.number, array.shape))
            if dtype is not BYTES and array.dtype is dtype.numpy:
                known.append((name, array.dtype, array.shape))
        structure = tuple(types)
        if len(known) == len(outputs):
            self._known, self._structure, self._size = known, structure, size
        return structure, data, size


def _pack(name: str, array: NDArray[Any], dtype: DataType, room: int) -> bytes | None:
    """Returns the bytes of an output; None if there are more than `room`."""
    if array.dtype != dtype.numpy:
        array = convert_output(name, array, dtype)
    if dtype is BYTES:
        return pack_texts(array, room)
    return array.tobytes() if array.nbytes <= room else None
