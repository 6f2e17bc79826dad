# SPDX-License-Identifier: Apache-2.0
"""Runs a model in the test's process, with the rules of a server."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from pytriton.runtime.pb_utils.request import RELEASE_RESCHEDULE, InferenceRequest
from pytriton.runtime.pb_utils.response import InferenceResponse
from pytriton.runtime.pb_utils.runtime import current_runtime, set_runtime
from pytriton.runtime.python_backend import answers
from pytriton.runtime.python_backend.batch_execution import takes_whole_batches
from pytriton.runtime.python_backend.failure_text import RuleError
from pytriton.runtime.python_backend.worker import CoroutineThread
from pytriton.serving.engine.config import config_to_json, spec_from_config
from pytriton.serving.engine.sequence.sequence_inputs import state_output_names
from pytriton.serving.repository.reading.config_files import read_initial_states
from pytriton.serving.repository.reading.layout import ModelPlace
from pytriton.testing.exchange import HarnessExchange
from pytriton.testing.inputs import make_tensors
from pytriton.testing.records import LogLine, Request, Response, ResponseError
from pytriton.testing.runtime import HarnessRuntime
from pytriton.testing.sequences import HarnessSequences
from pytriton.testing.source import ModelUnderTest
from pytriton.testing.targets import Target
from pytriton.testing.whole_batches import BatchCaller


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

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        """Returns what calls `execute_batch`; None if the model is called with single requests."""
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
        return InferenceRequest.received(
            tensors,
            names,
            request.id,
            request.correlation_id,
            flags,
            request.timeout_us,
            dict(request.parameters),
            None,
            exchange,
            self._spec.decoupled,
        )

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
