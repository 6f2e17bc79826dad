# SPDX-License-Identifier: Apache-2.0
"""The records that front ends, engine and instances exchange: tensors, requests, responses.

They depend on neither HTTP nor gRPC nor the channel. A tensor's data is any C-contiguous buffer in
the protocol's byte layout (little-endian, row-major; BYTES with length prefixes). Tensors are
passed on by reference, without copying the bytes.
"""

from __future__ import annotations

import enum
import functools
import itertools
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from pytriton.base.dtypes import BytesWalk, DataType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytriton.base.errors import ServerError

ParameterValue = bool | int | float | str


class InferTensor(msgspec.Struct, gc=False):
    """A named tensor of a request or of a response."""

    name: str
    dtype: DataType
    shape: tuple[int, ...]
    data: Any  # bytes, bytearray or memoryview
    strings: BytesWalk | None = None  # of a large BYTES tensor, after counting


class DeviceBytes(bytes):
    """Stands for bytes in the memory of a GPU, of which the server knows only how many they are.

    Whoever reads it gets no bytes. Where they are is in `DeviceUse`.

    Attributes:
        block: What keeps them in the memory of an instance; None: they are in a client's.
    """

    size: int
    block: Any

    @classmethod
    def of_size(cls, size: int, block: object = None) -> DeviceBytes:
        self = cls()
        self.size = size
        self.block = block
        return self

    def __len__(self) -> int:
        return self.size


class DevicePlace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A part of GPU memory of another process.

    It is in a region that a client has registered, or in an allocation that an instance has lent.
    """

    region: str  # its name
    number: int  # that no other region of this server has or had
    handle: bytes  # by which a process opens the region
    device: int
    region_size: int
    offset: int  # from the start of the region
    size: int
    # Of an allocation of an instance:
    gpu: bytes = b""  # the device, as `Driver.uuid_of` gives it; numbers differ between processes
    lease: int = 0  # what to say when the memory is not used any more
    own: int = 0  # the receiver's own number of the memory, if it is its own


class DeviceExport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A tensor in GPU memory of an instance, which keeps it until it is released."""

    block: int  # the instance's number of the tensor; 0: it is in memory that was lent
    size: int
    offset: int  # from the start of the allocation, or of what was lent
    allocation: int = 0  # the instance's number of the allocation
    handle: bytes = b""
    gpu: bytes = b""
    device: int = 0
    allocation_size: int = 0
    lease: int = 0  # that of the memory in which it is, if that was lent


class DeviceWish(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Whoever gets these outputs of a request takes them in GPU memory."""

    gpu: bytes = b""  # of this device only; empty: of any
    outputs: tuple[str, ...] | None = None  # None: all


class DeviceUse(msgspec.Struct, frozen=True, array_like=True):
    """The tensors of one request that are in GPU memory, by name; outputs only in a client's."""

    inputs: dict[str, DevicePlace]
    outputs: dict[str, DevicePlace]


_LONE, _WITH_DEVICE = -1, -2  # which no dimension of a tensor is
_lone_numbers = itertools.count(1)
_device_keys: dict[frozenset[str], int] = {}  # there are as many as models have such inputs


def lone_batch_key() -> tuple[tuple[int, ...], ...]:
    """Returns a batch key that no other request of this process has."""
    return ((_LONE, next(_lone_numbers)),)


def is_lone_batch_key(key: Any) -> bool:
    """Returns whether a request with this key shares its batch with no other, whatever comes."""
    return bool(key) and isinstance(key[0], tuple) and key[0][:1] == (_LONE,)


def device_batch_key(
    device: DeviceUse, key: tuple[tuple[int, ...] | bool, ...]
) -> tuple[tuple[int, ...] | bool, ...]:
    """Returns the batch key of a request with tensors in GPU memory.

    Those with the same inputs in memory of instances may run together. One with memory of a client
    is alone, as its region may be wrong, which is no error of others.
    """
    places = (*device.inputs.values(), *device.outputs.values())
    if not all(place.gpu for place in places):
        return lone_batch_key()
    number = _device_keys.setdefault(frozenset(device.inputs), len(_device_keys))
    return (*key, (_WITH_DEVICE, number))


class TraceContext(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The id of a span in the format of W3C Trace Context, for another process."""

    traceparent: str
    tracestate: str = ""
    is_internal: bool = False  # it links traces of this server, and tells its users nothing


class TraceOrigin(msgspec.Struct, array_like=True, gc=False):
    """The origin of a request that may be traced, from its front end."""

    protocol: str  # HTTP or GRPC
    traceparent: str = ""  # of the client, as are those below
    tracestate: str = ""
    began_ns: int = 0  # time.monotonic_ns() when its first bytes came; 0 if that is not known
    is_sampled: bool = False  # the front end has selected it


class RequestPath(enum.IntEnum):
    """How a request came to its model: with others in columns, or by itself and why.

    The names are those of the metric, in lower case. docs/metrics.md explains them.
    """

    UNCOUNTED = 0  # a call of another model, or in the same process
    COLUMNS = 1
    ALONE = 2  # no other request came with it: it was read by its form, and needs no columns
    NEW = 3  # too few requests of its form came before
    FORM = 4  # it has something that columns do not have, such as classes or shared memory
    HEADERS = 5  # its headers matter: compression, forwarded headers, the end of the connection
    LARGE = 6
    MODEL = 7  # the model takes no columns: it is decoupled, for example
    TRACED = 8


class ChunkOrigins(msgspec.Struct, array_like=True):
    """The origins of members of a chunk that may be traced; see `TraceOrigin`."""

    protocol: str
    indices: list[int]  # of these members
    began_ns: list[int]  # of all members
    is_sampled: bool = False

    def of(self, index: int) -> TraceOrigin | None:
        """Returns that of a member; None if it may not be traced."""
        if index not in self.indices:
            return None
        return TraceOrigin(self.protocol, "", "", self.began_ns[index], self.is_sampled)


class RequestGroup(msgspec.Struct):
    """Requests for a model that are one request of a client: quotas admit all of them, or none."""

    number: int  # another one for each, in the process that read the request
    count: int
    size: int  # bytes of inputs of all of them
    is_decided: bool = False
    error: Any = None  # the refusal


class RequestFields(msgspec.Struct, array_like=True, gc=False):
    """What a request says of itself, beside the model, its tensors and the outputs that it wants.

    Whoever reads a request fills them. After that several may share one record, so a change is a
    new record.
    """

    id: str = ""
    parameters: dict[str, ParameterValue] = {}
    priority: int = 0
    timeout_us: int = 0
    correlation_id: int | str = 0  # of a sequence
    flags: int = 0  # 1: the first request of its sequence, 2: the last
    principal: str = ""  # who sent it; empty: nobody that the server knows

    if TYPE_CHECKING:

        def __copy__(self) -> RequestFields: ...  # msgspec has it

    def changed(self, **changes: Any) -> RequestFields:
        """Returns the same with other values."""
        return msgspec.structs.replace(self, **changes)

    def with_id(self, request_id: str) -> RequestFields:
        """Returns the same with an id."""
        made = self.__copy__()  # `changed` takes three times as long
        made.id = request_id
        return made

    def with_principal(self, principal: str) -> RequestFields:
        """Returns the same with a principal."""
        if self is NO_FIELDS:
            return _fields_of(principal)
        made = self.__copy__()
        made.principal = principal
        return made


NO_FIELDS = RequestFields()  # shared by all that have none


@functools.lru_cache(maxsize=1024)  # requests with nothing else of their own share a record
def _fields_of(principal: str) -> RequestFields:
    return RequestFields(principal=principal)


class InferRequest(msgspec.Struct, eq=False):
    """One request of a client: a plain record, which may be sent to another process.

    While the engine serves it, its state is in `pytriton.runtime.executor.inference.Inference`.
    """

    model_name: str
    inputs: dict[str, InferTensor]
    model_version: str = ""
    fields: RequestFields = msgspec.field(default_factory=RequestFields)
    outputs: tuple[str, ...] | None = None  # requested names; None: all
    received_ns: int = 0  # time.monotonic_ns() when the front end had the whole request
    call_depth: int = 0  # number of nested calls between models that led to this request
    # Whether data of inputs or places for outputs are in shared memory of the client. The front end
    # that reads the request copies them, so no model sees it.
    uses_regions: bool = False
    path: RequestPath = RequestPath.UNCOUNTED
    operation: str = ""  # of OpenAI's routes, in the words of OpenTelemetry: chat, for example
    device: DeviceUse | None = None  # None: none of its tensors is in GPU memory
    device_wish: DeviceWish | None = None  # None: its outputs are wanted on the host
    group: RequestGroup | None = None  # None: it is all that its client asked for

    # Set when the request is validated against its model.
    rows: int = 1  # batch dimension; 1 if the model has none
    batch_key: Any = None  # only requests with equal keys share a batch


class InferResponse(msgspec.Struct, gc=False):
    """One response. A decoupled model sends any number to a request, other models send one."""

    model_name: str
    model_version: str
    id: str
    outputs: list[InferTensor]
    parameters: dict[str, ParameterValue] | None = None


class OutputBurst(msgspec.Struct, gc=False):
    """One output of all responses of a burst."""

    name: str
    dtype: DataType
    shape: tuple[int, ...]  # of each
    data: bytes  # of all, one after the other
    sizes: list[int]  # of each in bytes; empty: they have the same size

    def split(self, count: int) -> list[bytes]:
        """Returns the bytes of each of `count` responses."""
        data = self.data
        if not self.sizes:
            size = len(data) // count
            if not size:
                return [b""] * count
            return [data[at : at + size] for at in range(0, count * size, size)]
        parts = []
        at = 0
        for size in self.sizes:
            parts.append(data[at : at + size])
            at += size
        return parts


class ResponseBurst(msgspec.Struct, gc=False):
    """Responses to one request that came together. None is the last one of the request.

    They differ only in the bytes of their outputs, and have no parameters.
    """

    model_name: str
    model_version: str
    id: str
    count: int
    outputs: list[OutputBurst]

    def sizes(self) -> list[int]:
        """Returns the number of bytes of each response."""
        if not any(output.sizes for output in self.outputs):
            return [sum(len(output.data) for output in self.outputs) // self.count] * self.count
        columns = [list(map(len, output.split(self.count))) for output in self.outputs]
        return list(map(sum, zip(*columns, strict=True)))

    def responses(self) -> list[InferResponse]:
        """Returns a record for each response."""
        tensors: list[list[InferTensor]] = [[] for _ in range(self.count)]
        for output in self.outputs:
            for response, data in zip(tensors, output.split(self.count), strict=True):
                response.append(InferTensor(output.name, output.dtype, output.shape, data))
        return [
            InferResponse(self.model_name, self.model_version, self.id, each) for each in tensors
        ]


class ResponseSink(Protocol):
    """Receives the responses of a request: a front end's exchange, an ensemble step, a test.

    Each request ends exactly once: with a refusal, or with a final response or error. That may be
    before `Engine.infer` returns. A sink that also has `on_burst` gets a `ResponseBurst` with one
    call, others get its responses.
    """

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Receive a response; None with `final` ends a decoupled request without a tensor.

        If it cannot be delivered, this raises an exception; then `on_error` is called with that
        error, which ends the request.
        """

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        """Receive an error; only a decoupled request can continue after it."""

    def on_refused(self, error: ServerError) -> None:
        """Receive a refusal, which ends the request: no model has seen it."""


class ExecutionTrace(Protocol):
    """Receives what happens to a request, or to members of a chunk, until they are answered.

    Each is named by its index in the chunk, which is 0 for a request without one.
    """

    def contexts(
        self, first: int, end: int, *, is_model_file: bool
    ) -> Iterable[tuple[int, TraceContext]]:
        """Returns the parents for what the executing process adds to traces, by index."""

    def trace_id(self, index: int) -> str:
        """Returns the id by which users find the trace of a request; empty if it has none."""

    def add_execution(self, first: int, end: int, times_ns: ExecutionTimes) -> None:
        """Record an execution of `first` to `end` (without `end`), or of one of its responses."""

    def add_usage(self, index: int, usage: Any) -> None:
        """Record the tokens of a request of OpenAI's routes, which is about to end."""

    def on_cancelled(self, index: int) -> None:
        """Record that the client cancelled a request."""

    def sent(self, item: Any, index: int | None = None) -> None:
        """Add to the frame that takes a request to the core; without an index, all of a chunk."""

    def taken_back(self, index: int) -> None:
        """Record that the core has not taken a request, which is submitted again."""

    def charged(self, first: int, end: int, cost: RequestCost) -> None:
        """Record what the core says that each of these requests has cost."""


class RequestCost(msgspec.Struct, array_like=True, gc=False):
    """What one request has cost, over all its executions."""

    executions: int = 0  # that were measured; 0: nothing is known
    worker_ns: int = 0  # processor time, as the next one
    server_ns: int = 0
    queue_ns: int = 0
    bytes_in: int = 0  # of tensors
    bytes_out: int = 0
    tokens_in: int = 0  # of OpenAI's routes
    tokens_out: int = 0

    def add(self, other: RequestCost) -> None:
        """Add the costs of another request, for example of the same stream."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class ExecutionTimes(msgspec.Struct, frozen=True, gc=False):
    """When a request was queued, sent to an instance, computed, and answered; its costs.

    Costs are its part of the batch: by rows, and for the server by requests and bytes.
    """

    queued_ns: int
    started_ns: int
    infer_start_ns: int
    output_start_ns: int
    ended_ns: int
    processor_ns: int = 0  # of the instance
    server_ns: int = 0  # processor time of the server
    bytes_in: int = 0  # of tensors
    bytes_out: int = 0
