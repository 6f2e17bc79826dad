# SPDX-License-Identifier: Apache-2.0
"""Calls bound functions in the test's process, by the rules of a server."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from pytriton.decorators.context import TritonContext
from pytriton.model_config import ModelConfig, Tensor
from pytriton.models.binding import BindArguments, bound_model
from pytriton.proxy.types import Request as CallableRequest
from pytriton.runtime.backend.coroutines import CoroutineThread
from pytriton.runtime.backend.failure_text import RuleError
from pytriton.runtime.functions.model_call import FunctionCall, only_result
from pytriton.runtime.pb_utils.response import InferenceResponse
from pytriton.runtime.pb_utils.tensor import Tensor as WireTensor
from pytriton.serving.engine.config import (
    config_from_dict,
    config_to_json,
    normalise_config,
    spec_from_config,
)
from pytriton.serving.engine.config_rules import validate_config
from pytriton.serving.engine.sequence.sequence_inputs import state_output_names
from pytriton.testing.inputs import HarnessSequences, Member, batches, make_tensors
from pytriton.testing.records import Request, Response

InferFunc = Callable[..., Any]


class FunctionHarness:
    """A bound function in a test: no server, no port, no other process.

    The arguments are those of `Triton.bind`. Requests are checked, joined to batches and passed to
    the function as a server does it, and its outputs are checked in the same way. The test gets
    the function's exceptions unchanged.

    Args:
        infer_func: the callable, decorated or annotated as for `bind`; or a list of callables,
            which are called in turn.
        inputs: the inputs of the model; by default the annotations say them.
        outputs: the outputs of the model; by default the annotations say them.
        name: the name of the model; by default that of the function.
        config: the settings of the model, as for `bind`.
        strict: whether outputs must have the declared names, types and shapes, as for `bind`.

    Raises:
        PyTritonValidationError: an argument is wrong, as for `bind`.
    """

    def __init__(
        self,
        infer_func: InferFunc | Sequence[InferFunc],
        inputs: Sequence[Tensor] | None = None,
        outputs: Sequence[Tensor] | None = None,
        *,
        name: str | None = None,
        config: ModelConfig | None = None,
        strict: bool | None = None,
    ) -> None:
        name = name or _name_of(infer_func)
        self._model = bound_model(
            BindArguments(name, infer_func, inputs, outputs, config=config, strict=strict)
        )
        message = normalise_config(config_from_dict(self._model.message()))
        validate_config(message)
        self._config = config_to_json(message)
        self._spec = spec_from_config(
            message, self._model.version, initial_states=self._model.initial_states()
        )
        self._context = TritonContext()
        self._states = frozenset(state_output_names(self._spec))
        self._sequences = None if self._spec.sequence is None else HarnessSequences(self._spec)
        self._calls: list[FunctionCall] = []
        self._turn = 0
        self._coroutines = CoroutineThread(lambda _: None)

    def __enter__(self) -> FunctionHarness:  # noqa: PYI034  typing.Self needs Python 3.11
        self._model.prepare(self._context)
        self._calls = self._model.calls()
        return self

    def __exit__(self, *_: object) -> None:
        self._calls = []
        self._coroutines.stop()
        self._model.leave(self._context)

    @property
    def config(self) -> dict[str, Any]:
        """The whole configuration of the model, as clients see it."""
        config: dict[str, Any] = orjson.loads(self._config)
        return config

    def execute(self, inputs: Mapping[str, Any], **details: Any) -> Response:
        """Send one request to a model that is not decoupled.

        Args:
            inputs: arrays by name, or values that numpy can convert. The arrays have the batch
                dimension if the model has batching; a number or a text stands for one element.
            **details: the other fields of `Request`.

        Returns:
            The response.

        Raises:
            InvalidArgumentError: the request does not fit the inputs.
            ValueError: the function returned something that a server does not accept.
            RuleError: the model is decoupled.
            Exception: the exception that the function raised.
        """
        if self._spec.decoupled:
            raise RuleError(
                f"model '{self._spec.name}' is decoupled and sends any number of responses: use"
                " `stream`"
            )
        return self.execute_batch([Request(inputs, **details)])[0][0]

    def stream(self, inputs: Mapping[str, Any], **details: Any) -> list[Response]:
        """Like `execute`, for models that send any number of responses; waits for the last one."""
        return self.execute_batch([Request(inputs, **details)])[0]

    def execute_batch(self, requests: Sequence[Request]) -> list[list[Response]]:
        """Send several requests that came at the same time.

        They are joined to as few batches as a server would make: up to the maximum batch size, and
        only requests with equal shapes.

        Args:
            requests: in the order in which they came.

        Returns:
            The responses to each request: one, or any number from a decoupled model.

        Raises:
            Exception: as for `execute`.
        """
        if not self._calls:
            raise RuntimeError("expected the harness in a `with` statement, which starts the model")
        members = [self._member(request) for request in requests]
        responses: dict[int, list[Response]] = {}
        for batch in batches(members, self._spec):
            for member, answered in zip(batch, self._call(batch), strict=True):
                responses[id(member)] = answered
        return [responses[id(member)] for member in members]

    def _member(self, request: Request) -> Member:
        inputs = {name: self._filled(name, value) for name, value in request.inputs.items()}
        request = dataclasses.replace(request, inputs=inputs)
        arrays = {each.name(): each.as_numpy() for each in make_tensors(request, self._spec)}
        return Member(request, arrays)

    def _filled(self, name: str, value: Any) -> Any:
        """Returns a single value as an array with one element, in as many dimensions as needed."""
        spec = self._spec.inputs.get(name)
        if spec is None or not isinstance(value, bool | int | float | str | bytes | np.generic):
            return value
        for _ in spec.shape:  # it has the batch dimension, too
            value = [value]
        return value

    def _call(self, batch: Sequence[Member]) -> list[list[Response]]:
        """Call the function with a batch; returns the responses of each request."""
        answered: list[list[Response]] = [[] for _ in batch]
        limits = [member.request.cancel_after for member in batch]
        if all(limit == 0 for limit in limits):
            return answered
        call = self._calls[self._turn % len(self._calls)]
        self._turn += 1
        wanted = {position: self._wanted(member) for position, member in enumerate(batch)}
        for results in self._results(call, [self._request(member) for member in batch]):
            for position, outputs in enumerate(call.answers(results, len(batch), wanted)):
                limit = limits[position]
                if limit is None or len(answered[position]) < limit:
                    answered[position].append(self._response(batch[position], outputs))
            if all(
                limit is not None and len(each) >= limit
                for each, limit in zip(answered, limits, strict=True)
            ):
                break  # no client waits any more; this closes the generator
        return answered

    def _request(self, member: Member) -> CallableRequest:
        request, data = member.request, dict(member.arrays)
        if self._sequences is not None:
            controls = self._sequences.inputs(request.correlation_id, request.flags)
            data.update({each.name(): each.as_numpy() for each in controls})
        return CallableRequest(data, dict(request.parameters), None, self._wanted(member))

    def _wanted(self, member: Member) -> list[str]:
        given = member.request.outputs
        names = list(self._spec.outputs) if given is None else list(given)
        return list(dict.fromkeys((*names, *self._states)))

    def _response(self, member: Member, outputs: dict[str, NDArray[Any]]) -> Response:
        if self._sequences is not None:
            tensors = [WireTensor(name, array) for name, array in outputs.items()]
            self._sequences.keep(member.request.correlation_id, InferenceResponse(tensors))
        hidden = self._states - set(self._spec.outputs)
        shown = {name: array for name, array in outputs.items() if name not in hidden}
        return Response(shown)

    def _results(self, call: FunctionCall, requests: list[CallableRequest]) -> Iterator[Any]:
        """Yields what the function returns or yields, whatever kind it is of."""
        result = call.infer_func(requests)
        if inspect.iscoroutine(result):
            result = self._coroutines.run(result)
        if isinstance(result, AsyncIterator):
            result = self._steps(result)
        if isinstance(result, Iterator):
            if self._spec.decoupled:
                try:
                    yield from result
                finally:
                    close = getattr(result, "close", None)
                    if close is not None:
                        close()
                return
            result = only_result(result)
        yield result

    def _steps(self, results: AsyncIterator[Any]) -> Iterator[Any]:
        async def step() -> Any:
            return await anext(results, _END)

        async def close() -> None:
            if inspect.isasyncgen(results):
                await results.aclose()

        try:
            while (result := self._coroutines.run(step())) is not _END:
                yield result
        finally:
            self._coroutines.run(close())


_END = object()


def _name_of(infer_func: InferFunc | Sequence[InferFunc]) -> str:
    name = str(getattr(infer_func, "__name__", "") or "model")
    return name if name.isidentifier() else "model"
