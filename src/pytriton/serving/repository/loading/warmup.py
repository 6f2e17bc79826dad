# SPDX-License-Identifier: Apache-2.0
"""Warm-up: makes the tensors of samples, and runs them before an instance is in service.

It needs neither scheduler nor statistics.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton.base import dtypes
from pytriton.base.errors import InternalError, InvalidArgumentError, ServerError
from pytriton.base.messages import InferRequest, InferResponse, InferTensor, RequestFields
from pytriton.runtime.executor.inference import Inference
from pytriton.serving.repository.loading.plans import WarmupSample
from pytriton.serving.repository.reading.layout import ModelPlace, contained_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.base.messages import ResponseBurst
    from pytriton.runtime.executor.inference import Instance, Outcome, RunningBatch
    from pytriton.runtime.executor.python_instance import PythonInstance
    from pytriton.serving.engine.sequence.sequence_inputs import SequenceInputs

_FIELDS = RequestFields(correlation_id=1, flags=3)  # of a request that is a whole sequence


class WarmupRun:
    """Receives the events of one instance until it is in service."""

    costs = None  # no client caused them

    def shown(self, error: ServerError, batch: RunningBatch) -> ServerError:
        """See `InstanceEvents`: whoever loads the model gets the whole error."""
        return error

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sequence_inputs: SequenceInputs | None = None
    ) -> None:
        self._loop = loop
        self._sequence_inputs = sequence_inputs
        self._open = 0
        self._done: asyncio.Future[None] = loop.create_future()

    async def run(
        self, instance: PythonInstance, samples: Sequence[WarmupSample], *, batching: bool
    ) -> None:
        """Execute all samples in turn; raises InternalError with the name of one that failed."""
        for sample in samples:
            inputs = sample.request_inputs(batching=batching)
            for _ in range(sample.execution_count):
                inferences = [
                    Inference(self._make_request(inputs), _DiscardingSink())
                    for _ in range(sample.request_count)
                ]
                await self._execute(instance, sample.name, inferences)

    def _make_request(self, inputs: dict[str, InferTensor]) -> InferRequest:
        request = InferRequest("", dict(inputs), fields=_FIELDS)
        added = self._sequence_inputs
        if added is not None:
            added.add(request, added.new_states(), is_start=True, is_end=True)
        return request

    async def _execute(
        self, instance: PythonInstance, name: str, inferences: list[Inference]
    ) -> None:
        self._open = len(inferences)
        self._done = self._loop.create_future()
        try:
            instance.execute(inferences, time.monotonic_ns())
            await self._done
        except ServerError as error:
            raise InternalError(f"failed to run warmup sample '{name}': {error.message}") from error

    def on_outcomes(
        self,
        instance: Instance,
        batch: RunningBatch,
        outcomes: list[Outcome],
        times_ns: tuple[int, int],
    ) -> None:
        """Count the responses; each one of a decoupled model grants credit for another."""
        for outcome in outcomes:
            if outcome.error is not None and not self._done.done():
                self._done.set_exception(outcome.error)
            if outcome.is_final:
                self._open -= 1
            else:
                instance.grant(batch.inferences[outcome.position], 1)
        if self._open <= 0 and not self._done.done():
            self._done.set_result(None)

    def on_burst(
        self,
        instance: Instance,
        batch: RunningBatch,
        position: int,
        burst: ResponseBurst,
        times_ns: tuple[int, int],
    ) -> None:
        """Grant credit for as many responses."""
        instance.grant(batch.inferences[position], burst.count)

    def on_unavailable(self, instance: Instance) -> None:
        """Do nothing: `on_died` follows."""

    def on_died(self, instance: Instance, reason: str) -> None:
        """Do nothing: the errors of its requests have ended the warm-up."""


class _DiscardingSink:
    """Drops the responses of a warm-up."""

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Drop it."""

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        """Drop it."""

    def on_refused(self, error: ServerError) -> None:
        """Drop it."""


DIRECTORY = "warmup"
# The maximum size of a protobuf message.
MAX_TENSOR_BYTES = (2 << 30) - 1
_SEED = 0  # each load warms up with the same numbers


def build_warmup(place: ModelPlace, config: Any) -> tuple[WarmupSample, ...]:
    """Returns the samples to run; samples without requests are left out."""
    rng = np.random.default_rng(_SEED)
    return tuple(
        WarmupSample(
            name=sample.name,
            request_count=sample.batch_size,
            execution_count=sample.count or 1,
            inputs=tuple(
                _tensor(place, name, sample.inputs[name], rng) for name in sorted(sample.inputs)
            ),
        )
        for sample in config.model_warmup
        if sample.batch_size
    )


def _tensor(place: ModelPlace, name: str, setting: Any, rng: np.random.Generator) -> InferTensor:
    dtype = dtypes.BY_NUMBER.get(setting.data_type)
    if dtype is None:
        raise InvalidArgumentError(f"warmup setting expects a data type for input '{name}'")
    shape = tuple(setting.dims)
    if any(dim < 0 for dim in shape):
        raise InvalidArgumentError(
            f"warmup setting expects all variable-size dimensions are specified for input '{name}'"
        )
    count = math.prod(shape)
    if count * (dtype.itemsize or 4) > MAX_TENSOR_BYTES:
        raise InvalidArgumentError(
            f"warmup setting expects at most {MAX_TENSOR_BYTES} bytes for input '{name}', "
            f"got shape {list(shape)}"
        )
    source = setting.WhichOneof("input_data_type")
    if source == "input_data_file":
        data = _file_data(place, setting.input_data_file, dtype, count)
    elif source is None:
        raise InvalidArgumentError(
            f"warmup setting expects zero_data, random_data or input_data_file for input '{name}'"
        )
    elif source == "zero_data" or dtype is dtypes.BYTES:
        data = bytes(count * (dtype.itemsize or 4))  # an empty BYTES element has 4 bytes
    else:
        data = _random_data(dtype, count, rng)
    return InferTensor(name, dtype, shape, data)


def _random_data(dtype: dtypes.DataType, count: int, rng: np.random.Generator) -> bytes:
    numpy_dtype = dtype.numpy
    if numpy_dtype.kind in "biu":
        data = rng.bytes(count * dtype.itemsize)
        return (np.frombuffer(data, "u1") & 1).tobytes() if dtype is dtypes.BOOL else data
    # Random bytes would sometimes be infinite or not a number.
    return rng.random(count).astype(numpy_dtype).tobytes()


def _file_data(place: ModelPlace, name: str, dtype: dtypes.DataType, count: int) -> bytes:
    path = contained_file(place, name, under=DIRECTORY)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InternalError(
            f"failed to open text file for read {path}: {error.strerror}"
        ) from error
    if dtype is dtypes.BYTES:
        _check_elements(data, name, count)
        return data
    size = count * dtype.itemsize
    if len(data) < size:
        raise InvalidArgumentError(
            f"warmup setting expects {size} bytes, but the data provided from {name} "
            f"only has {len(data)} bytes"
        )
    return data[:size]


def _check_elements(data: bytes, name: str, count: int) -> None:
    try:
        found = len(dtypes.decode_bytes(data))
    except ValueError as error:
        raise InvalidArgumentError(
            f"warmup setting expects elements with lengths in {name}: {error}"
        ) from error
    if found != count:
        raise InvalidArgumentError(
            f"warmup setting expects {count} elements, but the data provided from {name} "
            f"has {found}"
        )
