# SPDX-License-Identifier: Apache-2.0
"""Requests and responses of the in-process API, and the engine's records made of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytriton.base.messages import InferRequest, InferTensor
from pytriton.inprocess.errors import InvalidArgumentError, TritonError
from pytriton.inprocess.tensor import Tensor, input_tensor

if TYPE_CHECKING:
    import asyncio
    import queue

    from pytriton.inprocess.model import Model

    ResponseQueue = queue.SimpleQueue["InferenceResponse"] | asyncio.Queue["InferenceResponse"]

_PARAMETER_TYPES = (str, int, float, bool)


@dataclass
class InferenceRequest:
    """A request. It may be sent several times, also at the same time.

    Attributes:
        model: The model that it is for.
        request_id: An id that its responses repeat.
        flags: 1 for the first request of a sequence, 2 for the last, 3 for both.
        correlation_id: The sequence that it belongs to: a number or a text.
        priority: Its priority in the model's queue; 0: the model's default.
        timeout: How long it may wait in the queue, in microseconds; 0: as the model says.
        inputs: By name; a `Tensor`, a numpy array or scalar, a list, or any object with
            `__dlpack__`, such as a torch tensor. A large one must not be changed before the first
            response has come.
        parameters: By name; texts, numbers and booleans, for the model.
        output_memory_type: The memory that outputs are wanted in, for example "cpu". They always
            come in host memory; other memory is refused when a response is fetched.
        response_queue: Gets all responses, beside the iterator: a `queue.SimpleQueue` for
            `Model.infer`, an `asyncio.Queue` for `Model.async_infer`.
    """

    model: Model
    request_id: str | None = None
    flags: int = 0
    correlation_id: int | str | None = None
    priority: int = 0
    timeout: int = 0
    inputs: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, str | int | float | bool] = field(default_factory=dict)
    output_memory_type: Any = None
    response_queue: ResponseQueue | None = None


@dataclass
class InferenceResponse:
    """A response to a request.

    Attributes:
        model: The model and the version that answered.
        request_id: The id of the request.
        parameters: What the model added, by name.
        outputs: By name. They are views of the memory that the response came in, which lives as
            long as they do.
        error: What went wrong; then there are no outputs.
        classification_label: Always None.
        final: Whether it is the last response.
    """

    model: Model
    request_id: str | None = None
    parameters: dict[str, str | int | float | bool] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    error: TritonError | None = None
    classification_label: str | None = None
    final: bool = False


def engine_request(request: InferenceRequest) -> InferRequest:
    """Returns the request for the engine, with all inputs converted.

    Raises:
        InvalidArgumentError: A field has a value of a wrong type.
    """
    model = request.model
    record = InferRequest(
        model.name,
        {name: _input(name, value) for name, value in request.inputs.items()},
        "" if model.version < 0 else str(model.version),
        received_ns=time.monotonic_ns(),
    )
    if request.parameters:
        record.fields.parameters = _checked_parameters(request.parameters)
    if request.request_id is not None:
        record.fields.id = _checked(request, "request_id", str)
    if request.correlation_id is not None:
        record.fields.correlation_id = _checked(request, "correlation_id", int, str)
    if request.flags or request.priority or request.timeout:
        record.fields.flags = _checked(request, "flags", int)
        record.fields.priority = _checked(request, "priority", int)
        record.fields.timeout_us = _checked(request, "timeout", int)
    return record


def _input(name: str, value: Any) -> InferTensor:
    if type(name) is not str:
        raise InvalidArgumentError(f"the name of an input must be a str, got {name!r}")
    return input_tensor(name, value)


def _checked(request: InferenceRequest, name: str, *types: type) -> Any:
    value = getattr(request, name)
    if not isinstance(value, types) or isinstance(value, bool):
        expected = " or ".join(each.__name__ for each in types)
        raise InvalidArgumentError(f"{name} must be {expected}, got {value!r}")
    if isinstance(value, int) and not 0 <= value < 2**64:
        raise InvalidArgumentError(f"{name} must be from 0 to 2**64 - 1, got {value}")
    return value


def _checked_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    for name, value in parameters.items():
        if not isinstance(name, str) or not isinstance(value, _PARAMETER_TYPES):
            raise InvalidArgumentError(
                f"parameter {name!r} must be a str, an int, a float or a bool, got {value!r} of "
                f"{type(value)}"
            )
    return dict(parameters)
