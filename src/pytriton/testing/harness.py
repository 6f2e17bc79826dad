# SPDX-License-Identifier: Apache-2.0
"""Runs a `model.py`, or the code of a backend, in the process of a test, as a server would."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from pytriton.base.model_spec import ModelSpec
from pytriton.runtime.backend.coroutines import CoroutineThread
from pytriton.runtime.backend.failure_text import RuleError
from pytriton.runtime.pb_utils.batch import Batch
from pytriton.runtime.pb_utils.failures import TritonError
from pytriton.runtime.pb_utils.request import (
    RELEASE_RESCHEDULE,
    InferenceRequest,
    ReceivedFields,
)
from pytriton.runtime.pb_utils.response import InferenceResponse
from pytriton.runtime.pb_utils.runtime import current_runtime, set_runtime
from pytriton.runtime.pb_utils.tensor import Tensor
from pytriton.runtime.python_backend import answers
from pytriton.runtime.python_backend.batch_execution import (
    checked_outputs,
    declared_outputs,
    parts_of,
    takes_whole_batches,
)
from pytriton.serving.engine.config import config_to_json, spec_from_config
from pytriton.serving.engine.sequence.sequence_inputs import state_output_names
from pytriton.serving.repository.reading.config_files import read_initial_states
from pytriton.serving.repository.reading.layout import ModelPlace
from pytriton.testing.inputs import HarnessSequences, copied_array, make_tensors
from pytriton.testing.records import LogLine, Request, Response, ResponseError
from pytriton.testing.runtime import HarnessRuntime, ModelUnderTest, Target


class ModelHarness:
    """A model in a test: no server, no port, no other process.

    Entering the context loads the model and calls `initialize`; leaving it calls `finalize`. The
    test gets the model's exceptions unchanged. Only one model at a time can be in a harness, unless
    one calls the other.

    Args:
        model: the model's folder in a repository, its file, the file of its backend, or a class.
        config: its configuration, as a file or as a dict in its JSON form; by default the
            `config.pbtxt` of the model's folder, if there is one. `auto_complete_config` completes
            it. If no inputs or outputs are declared, requests are not checked.
        models: functions that replace the models that this one calls: from a dict of arrays to a
            dict of arrays or to a `TritonError`; functions for decoupled models are generators.
        timeout_s: time limit for responses that are sent after `execute` returned.
        model_directory: the model's folder in its repository, if `model` is the code of a backend.
            The model's highest version is used.
        backend_config: what `get_backend_config` returns: the settings of `--backend-config`.
    """

    def __init__(
        self,
        model: str | Path | type[Any],
        config: Mapping[str, Any] | str | Path | None = None,
        *,
        models: Mapping[str, Target] | None = None,
        timeout_s: float = 10.0,
        model_directory: str | Path | None = None,
        backend_config: Mapping[str, str] | None = None,
    ) -> None:
        self._origin = model
        self._backend_config = backend_config or {}
        self._model_directory = model_directory
        self._given_config = config
        self._models = models or {}
        self._timeout_s = timeout_s
        self._coroutines = CoroutineThread(lambda _: None)

    def __enter__(self) -> ModelHarness:  # noqa: PYI034  typing.Self needs Python 3.11
        with ExitStack() as undo:
            self._source = ModelUnderTest.find(self._origin, self._model_directory)
            undo.callback(self._source.undo_import)
            self._runtime = HarnessRuntime(
                self._source.model_directory.name,
                str(self._source.version_directory),
                self._models,
                {"default-max-batch-size": "4", **self._backend_config},
            )
            undo.enter_context(self._runtime_set())
            config = self._source.read_config(self._given_config)
            self._runtime.instance_name = f"{config.instance_group[0].name}_0"
            self._config = config_to_json(config)
            directory = self._source.model_directory
            states = read_initial_states(ModelPlace(directory.parent, directory), config)
            version = int(self._source.version)
            self._spec = spec_from_config(config, version, initial_states=states)
            has_sequences = self._spec.sequence is not None
            self._sequences = HarnessSequences(self._spec) if has_sequences else None
            self.model: Any = self._source.model_class()
            if hasattr(self.model, "initialize"):
                self.model.initialize(self._arguments())
            self._batch_caller = self._make_batch_caller()
            self._runtime.can_infer = True
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._runtime.can_infer = False
        self._coroutines.stop()
        with self._undo:
            if hasattr(self.model, "finalize"):
                with self._runtime_set():
                    self.model.finalize()

    @property
    def config(self) -> dict[str, Any]:
        """The whole configuration, with the values that `auto_complete_config` and a server set."""
        config: dict[str, Any] = orjson.loads(self._config)
        return config

    @property
    def logs(self) -> list[LogLine]:
        """The lines that the model has logged so far."""
        return self._runtime.logs

    @property
    def calls(self) -> list[InferenceRequest]:
        """The requests that the model has sent to other models so far."""
        return self._runtime.calls

    @property
    def metrics(self) -> dict[str, float]:
        """The model's own metrics, by name and labels as on the metrics page."""
        return self._runtime.metrics()

    def execute(self, inputs: Mapping[str, Any], **details: Any) -> Response:
        """Send one request to a model that is not decoupled.

        Args:
            inputs: arrays by name.
            **details: the other fields of `Request`.

        Returns:
            The response.

        Raises:
            ResponseError: the model's response is an error; `execute_batch` returns such responses.
            InvalidArgumentError: the request does not fit the configuration.
            RuleError: `execute` returned something invalid, or the model is decoupled.
            TimeoutError: no response came in time.
            Exception: the exception that the model raised.
        """
        if self._spec.decoupled:
            raise RuleError(
                f"model '{self._spec.name}' is decoupled and sends any number of responses: use"
                " `stream`"
            )
        return self.stream(inputs, **details)[0]

    def stream(self, inputs: Mapping[str, Any], **details: Any) -> list[Response]:
        """Like `execute`, for models that send any number of responses; waits for the last one."""
        responses = self.execute_batch([Request(inputs, **details)])[0]
        if any(response.error is not None for response in responses):
            raise ResponseError(responses)
        return responses

    def execute_batch(self, requests: Sequence[Request]) -> list[list[Response]]:
        """Send several requests in one call of `execute`, or of a backend's `execute_batch`.

        Args:
            requests: in the order in which the model gets them.

        Returns:
            The responses to each request: one, or any number from a decoupled model. The `error`
            of a response is set if the model returned one.

        Raises:
            Exception: as for `execute`, but for errors in responses.
        """
        keep = self._sequences.keep if self._sequences is not None else None
        exchanges = [
            HarnessExchange(request, self._output_names(request), self._spec, keep)
            for request in requests
        ]
        received = [(exchange, self._receive(exchange)) for exchange in exchanges]
        with self._runtime_set():
            while received:
                received = self._run(received)
            return [exchange.wait(self._timeout_s) for exchange in exchanges]

    def is_ready(self) -> bool:
        """Returns the result of the model's `is_ready`; True if it has none.

        Raises:
            RuleError: its result is not a bool.
        """
        if not hasattr(self.model, "is_ready"):
            return True
        with self._runtime_set():
            answer = self._run_if_coroutine(self.model.is_ready())
        if not isinstance(answer, bool):
            raise RuleError(f"is_ready() must return a boolean value, got {type(answer)}")
        return answer

    def _arguments(self) -> dict[str, str]:
        return {
            "model_config": self._config.decode(),
            "model_instance_kind": "CPU",
            "model_instance_name": self._runtime.instance_name,
            "model_instance_device_id": "0",
            "model_repository": str(self._source.model_directory),
            "model_version": self._source.version,
            "model_name": self._spec.name,
        }

    def _make_batch_caller(self) -> BatchCaller | None:
        """Returns the caller of `execute_batch`; None if the model has only `execute`."""
        if not takes_whole_batches(
            self.model,
            is_backend=self._source.is_backend,
            is_decoupled=self._spec.decoupled,
        ):
            return None
        states = state_output_names(self._spec)
        return BatchCaller(self.model, self._spec, self._config.decode(), states)

    @contextmanager
    def _runtime_set(self) -> Iterator[None]:
        """Set the runtime that the model uses, and restore that of a calling model afterwards."""
        before = current_runtime()
        set_runtime(self._runtime)
        try:
            yield
        finally:
            set_runtime(before)

    def _output_names(self, request: Request) -> Sequence[str] | None:
        """Returns the outputs that a request's client gets; None for all if none are configured."""
        if request.outputs is not None:
            return request.outputs
        return list(self._spec.outputs) or None

    def _receive(self, exchange: HarnessExchange, flags: int | None = None) -> InferenceRequest:
        request = exchange.request
        flags = request.flags if flags is None else flags
        tensors = make_tensors(request, self._spec)
        names = self._output_names(request) or ()
        if self._sequences is not None:
            tensors += self._sequences.inputs(request.correlation_id, flags)
            names = list(dict.fromkeys((*names, *state_output_names(self._spec))))
        fields = ReceivedFields(
            request.id,
            request.correlation_id,
            flags,
            request.timeout_us,
            dict(request.parameters),
        )
        (received,) = InferenceRequest.received(exchange, [tensors], names, {}, {0: fields})
        return received

    def _run(
        self, received: list[tuple[HarnessExchange, InferenceRequest]]
    ) -> list[tuple[HarnessExchange, InferenceRequest]]:
        """Call `execute`; returns the requests that the model wants to get again."""
        requests = [request for _, request in received]
        try:
            responses = self._responses(requests)
        except BaseException:
            for request in requests:
                if request.sender is not None:
                    request.sender.mark_closed()
            raise
        again = []
        for (exchange, request), response in zip(received, responses, strict=True):
            if response is not None:
                exchange.send(response, is_final=True)
            elif request.release_flags == RELEASE_RESCHEDULE:
                self._check_iterative()
                again.append((exchange, self._receive(exchange, flags=0)))
        return again

    def _responses(
        self, requests: Sequence[InferenceRequest]
    ) -> Sequence[InferenceResponse | None]:
        if self._batch_caller is not None:
            return self._batch_caller.call(requests)
        result = self._run_if_coroutine(self.model.execute(requests))
        if not self._spec.decoupled:
            return answers.returned_responses(result, requests)
        answers.check_decoupled_return(result, self._runtime.instance_name)
        return [None] * len(requests)

    def _run_if_coroutine(self, result: Any) -> Any:
        return self._coroutines.run(result) if isinstance(result, Coroutine) else result

    def _check_iterative(self) -> None:
        if not self._spec.iterative:
            raise RuleError(
                "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model"
                " is not configured to handle such a flag."
            )


class HarnessExchange:
    """The server's side of one request, from the call of `execute` to the last response.

    It also stands for the client, which may cancel after some responses.

    Args:
        request: the client's request.
        output_names: the outputs that the client gets; None for all.
        spec: the model, whose outputs may have another shape for clients.
        keep_states: called with each response of a sequence.
    """

    def __init__(
        self,
        request: Request,
        output_names: Sequence[str] | None,
        spec: ModelSpec,
        keep_states: Callable[[int | str, InferenceResponse], None] | None = None,
    ) -> None:
        self.request = request
        self._spec = spec
        self.responses: list[Response] = []
        self._output_names = output_names
        self._keep_states = keep_states
        self._is_over = False
        self._changed = threading.Condition()

    @property
    def is_decoupled(self) -> bool:
        """Whether the model sends any number of responses."""
        return self._spec.decoupled

    def context(self, position: int) -> HarnessExchange:
        """Returns itself: its batch has one request."""
        return self

    def send(self, response: InferenceResponse | None, *, is_final: bool) -> None:
        """Receive a response, the end of the responses, or both."""
        with self._changed:
            if response is not None:
                if self._keep_states is not None:
                    self._keep_states(self.request.correlation_id, response)
                self.responses.append(self._as_received(response))
            self._is_over = is_final
            self._changed.notify_all()

    def is_cancelled(self) -> bool:
        """Whether the client has got the number of responses after which it cancels."""
        cancel_after = self.request.cancel_after
        return cancel_after is not None and len(self.responses) >= cancel_after

    def wait(self, timeout_s: float) -> list[Response]:
        """Wait for the last response and return all.

        Raises:
            TimeoutError: the model did not send the last one in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_over, timeout_s):
                raise TimeoutError(
                    f"expected the final response to request '{self.request.id}' within"
                    f" {timeout_s:g} s, got {len(self.responses)} responses and no"
                    " TRITONSERVER_RESPONSE_COMPLETE_FINAL"
                )
        return self.responses

    def _as_received(self, response: InferenceResponse) -> Response:
        if response.failure is not None:
            return Response({}, {}, response.failure)
        names = self._output_names
        outputs = {}
        for tensor in response.tensors:
            name = tensor.name()
            if names is not None and name not in names:
                continue
            array = self._reshaped(name, copied_array(tensor))
            if array is None:
                text = f"output tensor shape does not match size of output for '{name}'"
                return Response({}, {}, TritonError(text))
            outputs[name] = array
        return Response(outputs, dict(response.parameter_values or {}))

    def _reshaped(self, name: str, array: NDArray[Any]) -> NDArray[Any] | None:
        """Returns an output in the shape that clients get; None if it has another size."""
        expected = self._spec.outputs.get(name)
        if expected is None or expected.reshape is None:
            return array
        batching = self._spec.max_batch_size > 0
        shape = expected.reshape.convert(array.shape, batching=batching)
        return None if shape is None else array.reshape(shape)


class BatchCaller:
    """Calls `execute_batch` of a backend with requests as one batch, and splits its outputs.

    Args:
        model: the backend's object.
        spec: its model.
        config: the model's configuration as JSON.
        state_names: the states that the model has to return.
    """

    def __init__(
        self, model: Any, spec: ModelSpec, config: str, state_names: Sequence[str]
    ) -> None:
        self._model = model
        self._spec = spec
        self._is_batching = spec.max_batch_size > 0
        names = list(dict.fromkeys((*spec.outputs, *state_names)))
        self._declared = declared_outputs(config, names)

    def call(self, requests: Sequence[InferenceRequest]) -> list[InferenceResponse | None]:
        """Run requests as one batch and return the response to each.

        Raises:
            RuleError: they cannot be in one batch, or the backend returned something invalid.
            Exception: the exception that the backend raised.
        """
        batch = self._make_batch(requests)
        result = self._model.execute_batch(batch)
        declared = self._declared
        if not declared and isinstance(result, dict):  # nothing is configured, so all is allowed
            declared = dict.fromkeys(result)
            batch.output_names = list(result)
        outputs = checked_outputs(result, batch, declared, is_batching=self._is_batching)
        columns = {
            name: list(parts_of(output, batch.rows, is_batching=self._is_batching))
            for name, output in outputs.items()
        }
        return [self._response(batch, position, columns) for position in range(len(requests))]

    def _make_batch(self, requests: Sequence[InferenceRequest]) -> Batch:
        if len(requests) > 1 and not self._is_batching:
            raise RuleError(
                f"model '{self._spec.name}' has max_batch_size 0, so each request is a batch: send"
                " them one by one"
            )
        arrays = [{each.name(): each.as_numpy() for each in one.inputs()} for one in requests]
        if any(each.keys() != arrays[0].keys() for each in arrays):
            raise RuleError("a server does not batch requests with different inputs")
        shapes: dict[str, list[tuple[int, ...]]] = {}
        inputs = {
            name: self._joined(name, [each[name] for each in arrays], shapes) for name in arrays[0]
        }
        wanted = {name for each in requests for name in each.output_names}
        names = self._declared or sorted(wanted)
        return Batch(
            inputs,
            [_rows(each) if self._is_batching else 1 for each in arrays],
            [name for name in names if name in wanted],
            shapes=shapes,
            ids={at: each.request_id() for at, each in enumerate(requests) if each.request_id()},
            parameters=_parameters(requests),
        )

    def _joined(
        self, name: str, parts: list[NDArray[Any]], shapes: dict[str, list[tuple[int, ...]]]
    ) -> NDArray[Any]:
        if len(parts) == 1:
            return parts[0]
        if all(part.shape[1:] == parts[0].shape[1:] for part in parts):
            return np.concatenate(parts)
        if not self._spec.inputs[name].is_ragged:
            raise RuleError(
                f"a server does not batch requests whose input '{name}' has different shapes,"
                " unless its configuration has allow_ragged_batch"
            )
        shapes[name] = [part.shape for part in parts]
        return np.concatenate([part.ravel() for part in parts])

    def _response(
        self, batch: Batch, position: int, columns: dict[str, list[NDArray[Any]]]
    ) -> InferenceResponse:
        if position in batch.failures:
            return InferenceResponse([], TritonError(*batch.failures[position]))
        return InferenceResponse(
            [Tensor.from_array(name, parts[position]) for name, parts in columns.items()]
        )


def _rows(arrays: dict[str, NDArray[Any]]) -> int:
    return next((len(array) for array in arrays.values()), 1)


def _parameters(requests: Sequence[InferenceRequest]) -> dict[int, dict[str, Any]]:
    values = {at: each.parameter_values for at, each in enumerate(requests)}
    return {at: dict(each) for at, each in values.items() if each}
