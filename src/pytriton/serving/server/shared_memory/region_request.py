# SPDX-License-Identifier: Apache-2.0
"""A request with tensors in shared memory of its client: reads its inputs, writes its outputs.

It stands between a front end and the engine: for the engine it is the sink of the responses, for
the front end the handle of the request. An input is copied once, from the region into memory that
the instance reads; an output once, from the memory in which the instance's answer came. Large
copies are made in threads, and responses keep their order.

A client can make an object of any size that takes no memory, but what the server reads of it does.
So nothing is read for a request that would be refused, and not more than there is room for.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pytriton.base import dtypes
from pytriton.base.dtypes import BytesWalk
from pytriton.base.errors import (
    InternalError,
    ServerError,
    UnavailableError,
    error_for_clients,
)
from pytriton.base.messages import DeviceBytes, DeviceUse, InferResponse, InferTensor
from pytriton.protocol.shared_memory import RegionPlace
from pytriton.runtime.transport.payload import INLINE_TENSOR_BYTES
from pytriton.serving.engine.validation import UncountedStringsError, validate
from pytriton.serving.server.shared_memory.regions import RegionSlice

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.base.messages import DevicePlace, InferRequest, ResponseSink, TraceOrigin
    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.shared_memory.regions import RegionTable

_SHARE = 2  # inputs in shared memory may take one part of this many of the machine's memory

# Copies of up to this many bytes are made at once: they take 20 to 50 us.
SMALL_BYTES = 256 << 10
MAX_HELD = 2  # responses that wait for earlier ones before the model has to wait

Submit = Callable[["InferRequest", "ResponseSink"], "Inference"]
# Runs a function in a thread, then calls another with its error, or with None.
RunLater = Callable[[Callable[[], None], Callable[["ServerError | None"], None]], None]


class Read(NamedTuple):
    """An input that has to be read, and the memory for it."""

    source: RegionSlice
    memory: memoryview


class Write(NamedTuple):
    """An output that has to be written."""

    target: RegionSlice
    data: Buffer


class Held(NamedTuple):
    """A response or an error that waits until earlier ones are written."""

    response: InferResponse | None
    error: ServerError | None
    is_final: bool


class RegionRequest:
    """One request; its inputs in shared memory have a `RegionPlace` as data until they are read.

    The sink gets responses whose outputs in `places` have no data: it is in shared memory then.
    """

    def __init__(
        self,
        request: InferRequest,
        places: Mapping[str, RegionPlace],
        sink: ResponseSink,
        submit: Submit,
        run_later: RunLater,
        budget: ReadBudget,
    ) -> None:
        self.is_reading = False  # a large input is being read
        self.on_submitted: Callable[[], None] | None = None  # called if that took a while
        self._request: InferRequest | None = request  # until it is submitted
        self._places = places
        self._sink: ResponseSink | None = sink  # until the request has ended
        self._submit: Submit | None = submit  # until it is submitted
        self._run_later = run_later
        self._budget = budget
        self._taken_bytes = 0  # of the budget
        self._inference: Inference | None = None
        self._targets: dict[str, RegionSlice] = {}
        self._device_outputs: frozenset[str] = frozenset()  # which the instance writes
        self._held: deque[Held] = deque()
        self._is_writing = False
        self._is_cancelled = False
        self._is_client_slow = False
        self._is_paused = False

    @property
    def watched(self) -> Any:
        """What a port notes about the request, as its sink says; see `Members`."""
        return getattr(self._sink, "watched", None)

    def start(self, table: RegionTable, model: ServedModel) -> None:
        """Find the regions, then read the inputs and submit the request, now or later.

        Raises:
            ServerError: A region is unknown, too small, or cannot be read, the request does not fit
                its model, or there is no room for its inputs.
        """
        request = self._request
        assert request is not None
        sources = []
        inputs: dict[str, DevicePlace] = {}
        for tensor in request.inputs.values():
            if isinstance(tensor.data, RegionPlace):
                found = table.find(tensor.data)
                if isinstance(found, RegionSlice):
                    sources.append(UnreadInput(tensor, found))
                else:
                    inputs[tensor.name] = found
                    tensor.data = DeviceBytes.of_size(found.size)
        self._find_targets(table, inputs)
        if sources:  # else nothing is read, and the engine checks it
            check_unread(request, sources, model.spec)
            size = sum(source.place.byte_size for source in sources)
            self._budget.take(size)
            self._taken_bytes = size
        try:
            self._read(sources, model)
        except BaseException:
            self._end()
            raise

    def _find_targets(self, table: RegionTable, inputs: dict[str, DevicePlace]) -> None:
        """Find where outputs go, and tell the request what of it is in GPU memory."""
        assert self._request is not None
        outputs: dict[str, DevicePlace] = {}
        for name, place in self._places.items():
            found = table.find(place)
            if isinstance(found, RegionSlice):
                self._targets[name] = found
            else:
                outputs[name] = found
        if inputs or outputs:
            self._device_outputs = frozenset(outputs)
            self._request.device = DeviceUse(inputs, outputs)

    def _read(self, sources: Sequence[UnreadInput], model: ServedModel) -> None:
        reads = []
        for tensor, place in sources:
            tensor.data = memory = _memory(model, place.byte_size)
            reads.append(Read(place, memory))
        if self._taken_bytes > SMALL_BYTES:
            self.is_reading = True
            self._run_later(partial(_read_all, reads), self._on_read)
        else:
            _read_all(reads)
            self._pass_to_engine()

    def _on_read(self, error: ServerError | None) -> None:
        self.is_reading = False
        sink = self._sink
        if self._is_cancelled or sink is None:
            self._end()
        elif error is not None:
            self._end()
            sink.on_refused(error)
        else:
            try:
                self._pass_to_engine()
            except Exception as failure:  # noqa: BLE001  the client gets it
                self._fail(failure)
        if self.on_submitted is not None:
            on_submitted, self.on_submitted = self.on_submitted, None
            on_submitted()

    def _pass_to_engine(self) -> None:
        request, self._request = self._request, None
        submit, self._submit = self._submit, None
        assert request is not None
        assert submit is not None
        inference = submit(request, self)
        if self._sink is not None:  # else it has ended already
            self._inference = inference
            if self._is_paused:
                inference.pause()

    # The handle

    def cancel(self) -> None:
        """Cancel the request: nobody waits for its responses any more."""
        self._is_cancelled = True
        if self._inference is not None:
            self._inference.cancel()

    def pause(self) -> None:
        """Make a decoupled model wait: the client reads responses slower than they arrive."""
        self._is_client_slow = True
        self._update_pause()

    def resume(self) -> None:
        self._is_client_slow = False
        self._update_pause()

    def _update_pause(self) -> None:
        is_paused = self._is_client_slow or len(self._held) >= MAX_HELD
        if is_paused == self._is_paused:
            return
        self._is_paused = is_paused
        if self._inference is not None:
            if is_paused:
                self._inference.pause()
            else:
                self._inference.resume()

    # The sink

    def origin(self) -> TraceOrigin | None:
        """Returns where the request came from; see `Members`."""
        origin = getattr(self._sink, "origin", None)
        return None if origin is None else origin()

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Write the outputs of a response, then pass it on without their data."""
        if self._is_writing:
            self._hold(Held(response, None, final))
        else:
            self._take(response, final=final)

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        if self._is_writing:
            self._hold(Held(None, error, final))
        else:
            self._pass_on(None, error, final=final)

    def on_refused(self, error: ServerError) -> None:
        sink = self._sink
        self._end()
        if sink is not None:
            sink.on_refused(error)

    def _hold(self, held: Held) -> None:
        self._held.append(held)
        self._update_pause()

    def _take(self, response: InferResponse | None, *, final: bool) -> None:
        if response is None or not (self._targets or self._device_outputs):
            self._pass_on(response, None, final=final)
            return
        try:
            self._check_written(response.outputs)
            writes = self._plan(response.outputs)
            if sum(len(write.data) for write in writes) > SMALL_BYTES:
                self._is_writing = True
                on_written = partial(self._on_written, _without_data(response, self._targets))
                self._run_later(partial(_write_all, writes), partial(on_written, final))
                return
            _write_all(writes)
        except ServerError as error:
            self._pass_on(None, error, final=final)
        else:
            self._pass_on(_without_data(response, self._targets), None, final=final)

    def _check_written(self, outputs: Sequence[InferTensor]) -> None:
        for tensor in outputs:
            if tensor.name in self._device_outputs and len(tensor.data):
                raise unwritten_error(tensor.name)

    def _plan(self, outputs: Sequence[InferTensor]) -> list[Write]:
        writes = []
        for tensor in outputs:
            target = self._targets.get(tensor.name)
            if target is None:
                continue
            if len(tensor.data) > target.byte_size:
                raise InternalError(
                    f"shared memory size specified with the request for output '{tensor.name}' "
                    f"({target.byte_size} bytes) should be at least {len(tensor.data)} bytes to "
                    "hold the results"
                )
            writes.append(Write(target, tensor.data))
        return writes

    def _on_written(self, response: InferResponse, final: bool, error: ServerError | None) -> None:
        self._is_writing = False
        self._pass_on_later(None if error is not None else response, error, final=final)
        while self._held and not self._is_writing:
            held = self._held.popleft()
            if held.error is None and held.response is not None and self._sink is not None:
                self._take_later(held.response, final=held.is_final)
            else:
                self._pass_on_later(held.response, held.error, final=held.is_final)
        self._update_pause()

    def _take_later(self, response: InferResponse, *, final: bool) -> None:
        try:
            self._take(response, final=final)
        except Exception as error:  # noqa: BLE001  the client gets it
            self._fail(error)

    def _pass_on_later(
        self, response: InferResponse | None, error: ServerError | None, *, final: bool
    ) -> None:
        """Pass on what the engine has delivered before; a failure ends the request."""
        try:
            self._pass_on(response, error, final=final)
        except Exception as failure:  # noqa: BLE001  the client gets it
            self._fail(failure)

    def _fail(self, failure: Exception) -> None:
        inference = self._inference
        error = error_for_clients(failure, "it served a request with shared memory")
        self._pass_on(None, error, final=True)
        if inference is not None:
            inference.cancel()  # the model may have more responses

    def _pass_on(
        self, response: InferResponse | None, error: ServerError | None, *, final: bool
    ) -> None:
        sink = self._sink
        if sink is None:  # it has ended with an error
            return
        if error is not None:
            sink.on_error(error, final=final)
        else:
            sink.on_response(response, final=final)
        if final:
            self._end()

    def _end(self) -> None:
        # The sink refers to this object, and a cycle would keep the tensors.
        self._sink = self._inference = self._request = self._submit = None
        self._held.clear()
        self._targets = {}
        self._budget.give_back(self._taken_bytes)
        self._taken_bytes = 0


def unwritten_error(name: str) -> InternalError:
    """Returns the error of an output that came with its data, which should be in GPU memory."""
    return InternalError(f"output '{name}' was not written to its CUDA shared memory region")


def _memory(model: ServedModel, size: int) -> memoryview:
    """Allocate memory for an input: for a large one of the model, from which it is not copied."""
    memory = None if size <= INLINE_TENSOR_BYTES else model.body_memory(size, 0)
    return np.empty(size, np.uint8).data if memory is None else memory


def _read_all(reads: Sequence[Read]) -> None:
    for source, memory in reads:
        source.read_into(memory)


def _write_all(writes: Sequence[Write]) -> None:
    for target, data in writes:
        target.write(data)


def _without_data(response: InferResponse, targets: Mapping[str, Any]) -> InferResponse:
    outputs = [
        InferTensor(tensor.name, tensor.dtype, tensor.shape, b"")
        if tensor.name in targets
        else tensor
        for tensor in response.outputs
    ]
    return InferResponse(
        response.model_name, response.model_version, response.id, outputs, response.parameters
    )


class UnreadInput(NamedTuple):
    """An input that has to be read, and from where."""

    tensor: InferTensor
    place: RegionSlice


class _Unread:
    """Stands for the data of an input; only its size is known."""

    __slots__ = ("_size",)

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


def check_unread(request: InferRequest, sources: Iterable[UnreadInput], spec: ModelSpec) -> None:
    """Check a request before its inputs are read; the strings in them are not counted here.

    Raises:
        InvalidArgumentError: It does not fit its model, whatever its inputs are.
    """
    strings: list[InferTensor] = []
    for tensor, place in sources:
        unread: Any = _Unread(place.byte_size)
        tensor.data = unread
        if tensor.dtype is dtypes.BYTES:
            tensor.strings = BytesWalk(prod(tensor.shape), 0, place.byte_size)
            strings.append(tensor)
    with contextlib.suppress(UncountedStringsError):  # of another input; the engine counts them
        validate(request, spec)
    for tensor in strings:
        tensor.strings = None


class ReadBudget:
    """The memory for inputs of requests that have not ended, and how much they may take."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0

    def take(self, size: int) -> None:
        """Count the inputs of a request; UnavailableError if there is no room for them."""
        if size > self._limit_bytes - self._used_bytes:
            raise UnavailableError(
                f"inputs in shared memory may take {self._limit_bytes} bytes at a time, of which "
                f"{self._used_bytes} are in use: there is no room for {size}"
            )
        self._used_bytes += size

    def give_back(self, size: int) -> None:
        self._used_bytes -= size


def machine_budget(process_count: int) -> ReadBudget:
    """Returns the budget of one of several processes that read inputs."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return ReadBudget(total // _SHARE // max(1, process_count))
