# SPDX-License-Identifier: Apache-2.0
"""The messages between the server and its instances, and how all messages of channels are encoded.

A worker first receives `Initialize` and sends `Initialized`; last it receives `Finalize` and exits.
In between it gets batches, and may call other models and the server's services from any of its
threads. Batches of bound functions use the same frames.

An encoded message is a 4-byte length, the record in MessagePack, padding, then the bytes of small
tensors. Larger tensors are references into an arena. New fields are appended at the end of a
record.
"""
# ruff: noqa: RUF012  these are structs of msgspec, which copies defaults
# Annotations are no strings here: msgspec would compile them, which takes half of their import.

import re
import struct
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from pytriton.base.errors import ErrorCode
from pytriton.base.failure_records import FailureOrigin
from pytriton.base.log_switches import LogSwitches
from pytriton.base.messages import (
    DeviceExport,
    DevicePlace,
    DeviceUse,
    DeviceWish,
    ParameterValue,
    TraceContext,
)
from pytriton.runtime.transport.frontend_frames import FrontEndFrame
from pytriton.runtime.transport.peer_account import ProtocolError
from pytriton.runtime.transport.refs import FrameBase, TensorRef

Buffer = bytes | bytearray | memoryview

PACKAGE_FILE = "pytriton:"
# Begins a message on a worker's fork socket that brings the pipe of its standard error, not a
# channel; the name of the model follows.
STANDARD_ERROR = b"\1"
INLINE_ALIGNMENT = 16
_LENGTH = struct.Struct("<I")
_PADDING = [bytes(size) for size in range(INLINE_ALIGNMENT)]
_encoder = msgspec.msgpack.Encoder()

# As in `refs`: what values are possible, whoever sends them.
Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 32)]
Amount = Annotated[int, msgspec.Meta(ge=0, le=1 << 56)]  # of bytes, or of processor time
Code = Annotated[int, msgspec.Meta(ge=0, le=int(max(ErrorCode)))]
Tensors = Annotated[list[TensorRef], msgspec.Meta(max_length=1 << 14)]
# Reading a megabyte of it takes a second.
ConfigText = Annotated[str, msgspec.Meta(max_length=1 << 20)]
# A process runs fewer batches at the same time than that, whatever it says.
Concurrency = Annotated[int, msgspec.Meta(ge=0, le=1 << 16)]


class FunctionTensor(msgspec.Struct, array_like=True):
    """An input or output of a bound function, as its `Tensor` says it."""

    name: str | None
    shape: list[int]
    dtype: str  # numpy's name of the type
    is_optional: bool = False
    device: str | None = None


class FunctionSource(msgspec.Struct, array_like=True):
    """A bound function that a worker imports, and the other arguments of its `bind`."""

    reference: str  # module:function
    search_paths: list[str]  # searched for the module, too, if they exist there
    config: dict[str, Any]  # Triton's ModelConfig, with warm-ups
    inputs: list[FunctionTensor] | None = None  # None: annotations say them
    outputs: list[FunctionTensor] | None = None
    is_strict: bool = False


class Initialize(FrameBase, tag="initialize"):
    """Server to worker, first: the code to load, and the arguments of its `initialize`."""

    model_path: str  # the absolute path of the file
    package: str  # the package that it is imported in: the version; "" for code of a backend
    arguments: dict[str, str]
    output_names: list[str]  # all configured outputs
    is_decoupled: bool = False
    is_batching: bool = False  # inputs have a batch dimension, along which they are split
    completes_config: bool = False  # only `auto_complete_config` is called, then the worker ends
    log: LogSwitches = LogSwitches()
    is_library: bool = False  # `model_path` is a compiled backend, which is loaded, not imported
    backend_config: dict[str, str] = {}  # settings of `--backend-config` that hold for this backend
    model_directory: str = ""  # of `get_model_dir`; "": that of the file
    polling_cores: int = 0  # of a worker that may poll for its next batch; 0: it must not
    device_polling_cores: int = 0  # the same, after it had a request with tensors in GPU memory
    has_gpus: bool = False  # of models on the server's machine: there are GPUs for them
    # On another machine: how its files can be there, for the error if they are not. Then the path
    # of a file in this package begins with `PACKAGE_FILE`, as the package may be elsewhere there.
    sharing: str = ""
    function: FunctionSource | None = None  # a bound function is imported, not `model_path`


class Initialized(FrameBase, tag="initialized"):
    """Worker to server: the model can run batches, or the reason why it cannot."""

    error: str = ""
    config: ConfigText = ""  # the JSON result of `auto_complete_config`
    has_ready_check: bool = False  # the model has `is_ready`
    is_async: bool = False  # `execute` is a coroutine function: its calls run concurrently
    # One of `ErrorCode` if the error names one, negative otherwise.
    error_code: Annotated[int, msgspec.Meta(ge=-1, le=int(max(ErrorCode)))] = -1
    # Of a bound function: the batches that it runs at the same time, each of which occupies its
    # slot until it is answered. 0: a model.py, which tells when `execute` has returned.
    concurrency: Concurrency = 0
    takes_device_memory: bool = False  # requests may have tensors in GPU memory
    keeps_device_inputs: bool = False  # the model wants such inputs where they are
    gpu: bytes = b""  # the device that it uses, if that is known; see `DevicePlace`

    @property
    def is_failure(self) -> bool:
        """Whether the model could not be loaded; an error with a code may have no text."""
        return bool(self.error) or self.error_code >= 0


class Finalize(FrameBase, tag="finalize"):
    """Server to worker, last: call `finalize`, then exit."""


class Finalized(FrameBase, tag="finalized"):
    """Process of a group to server, last: its `finalize` has returned.

    It waits for the others then: the end of any process is the end of the group.
    """


class CheckReady(FrameBase, tag="check"):
    """Server to worker: call `is_ready`."""

    call: int


class ReadyReport(FrameBase, tag="ready"):
    """Worker to server: the result of `is_ready`."""

    call: int
    is_ready: bool


class InferCallFrame(FrameBase, tag="infer"):
    """Worker to server: infer with another model. The worker numbers its calls."""

    call: int
    model_name: str
    model_version: int  # -1: the newest
    inputs: Tensors
    outputs: list[str] = []  # empty: all
    id: str = ""
    correlation_id: int | str = 0
    flags: int = 0
    timeout_us: int = 0
    parameters: dict[str, ParameterValue] = {}
    is_decoupled: bool = False  # the caller accepts any number of responses
    blocked_batch: int = 0  # the batch whose `execute` blocks the model's thread on this call, or 0
    trace: TraceContext | None = None  # of the request for which the call is made
    batch: int = 0  # the batch whose `execute` made the call, if known and not `blocked_batch`
    blocks_loop: bool = False  # the blocked thread is the one that runs all batches' coroutines
    keeps_errors: bool = (
        False  # refusals keep their code and text, without the Python backend's words
    )
    priority: int = 0
    device: dict[str, DeviceExport] = {}  # those of its inputs that are in GPU memory
    device_wish: DeviceWish | None = None


class InferReply(FrameBase, tag="reply"):
    """Server to worker: a response to an `InferCallFrame`, an error, or an end without tensors."""

    call: int
    outputs: list[TensorRef] | None = None
    is_final: bool = True
    error: str | None = None
    error_code: int = 0
    parameters: dict[str, ParameterValue] | None = None
    device: dict[str, DevicePlace] | None = None  # those of its outputs that are in GPU memory


class CancelCall(FrameBase, tag="cancel_call"):
    """Worker to server: the caller cancels an `InferCallFrame`; its end is still reported."""

    call: int


class CallCredit(FrameBase, tag="call_credit"):
    """Worker to server: the caller of a decoupled model consumed `count` more responses."""

    call: int
    count: Count


class ServiceCall(FrameBase, tag="service"):
    """Worker to server: a call of a service; `docs/internals.md` lists the actions."""

    call: int  # 0: no reply is expected
    action: str
    arguments: dict[str, Any]


class ServiceReply(FrameBase, tag="service_reply"):
    """Server to worker: the result of a `ServiceCall`, or an error."""

    call: int
    value: Any = None
    error: str | None = None


class WorkerLogLine(FrameBase, tag="log"):
    """Worker to server: a line for the server's log."""

    level: str  # INFO, WARNING, ERROR or VERBOSE
    message: str
    file: str
    line: int
    request_ids: list[str] = []  # of those requests that caused it, as the log shows them
    model: str = ""  # its name
    is_printed: bool = False  # the worker has printed it: it is kept for the page, and not written
    process: int = 0  # which wrote it; 0: unknown
    created: float = 0.0  # seconds since 1970, of what was printed


class LogChange(FrameBase, tag="log_change"):
    """Server to a worker, or core to a front end: the new settings of the log."""

    switches: LogSwitches


class RequestDetails(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """The details of a request that only models of the Python backend get."""

    correlation_id: int | str = 0
    flags: int = 0
    timeout_us: int = 0


class Execute(FrameBase, tag="execute"):
    """Server to instance: run these requests as a batch. Positions are indices into `rows`."""

    batch: int
    rows: list[int]  # batch dimension of each request
    inputs: list[TensorRef]  # each holds the whole batch
    ids: dict[int, str] = {}
    parameters: dict[int, dict[str, ParameterValue]] = {}
    outputs: dict[int, list[str]] = {}  # requested names, of requests that do not want all
    traces: dict[int, TraceContext] = {}  # of the traced requests
    details: dict[int, RequestDetails] = {}  # of the requests whose details are not the defaults
    # Of requests with tensors in GPU memory; the same inputs of all of them are there.
    devices: dict[int, DeviceUse] = {}
    device_wishes: dict[int, DeviceWish] = {}  # of requests whose outputs may stay there


class DropRegions(FrameBase, tag="drop_regions"):
    """Server to instance: these regions of GPU memory were unregistered, or their owner ended."""

    numbers: list[int]


class ReleaseExports(FrameBase, tag="release_exports"):
    """Server to instance: nobody uses these of its tensors in GPU memory any more."""

    blocks: list[int]


class DeviceNotes(FrameBase, tag="device_notes"):
    """Instance to server: what it has to say about GPU memory that processes share."""

    leases: list[int] = []  # what was lent to it, and is not used any more
    gone: list[int] = []  # allocations of its own that were freed
    copied: dict[str, Count] = {}  # tensors that went through the host, by reason
    unopened: dict[int, str] = {}  # why it could not open memory of others, by its number


class Cancel(FrameBase, tag="cancel"):
    """Server to instance: this request was cancelled."""

    batch: int
    position: int


class Credit(FrameBase, tag="credit"):
    """Server to instance: the client of this request has consumed `count` more responses."""

    batch: int
    position: int
    count: int


class MemoryFrame(FrameBase, tag="memory"):
    """In both directions: only an update about memory."""


class BatchResult(FrameBase, tag="batch"):
    """Instance to server: a response to each request of a batch; outputs hold the whole batch."""

    batch: int
    started_ns: Nanoseconds
    finished_ns: Nanoseconds
    outputs: Tensors
    processor_ns: Amount = 0  # that the instance used since its last answer, as in those below
    # Bytes that it has copied to GPUs, and from them to the host, since its last answer.
    copied: tuple[Amount, Amount] = (0, 0)


class ResponseItem(msgspec.Struct, array_like=True):
    """One response, an error in its place, or an end without tensors."""

    batch: int
    position: int
    outputs: Tensors | None = None
    is_final: bool = True
    error: str | None = None
    error_code: Code = 0
    parameters: dict[str, ParameterValue] | None = None
    is_rescheduled: bool = False  # there is no response: the request is to be executed again
    origin: FailureOrigin | None = None  # of the exception behind an error; not for clients
    device: dict[str, DeviceExport] | None = None  # those of its outputs that are in GPU memory


class BurstRef(msgspec.Struct, array_like=True, gc=False):
    """The next `count` responses of a `ResponseRows`, which are for one request."""

    batch: int
    position: int
    count: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]


class ResponseRows(msgspec.Struct, array_like=True):
    """Responses with outputs of the same names, types and shapes, none of them the last one."""

    bursts: list[BurstRef]
    # Each has the bytes of all responses one after the other; `shape` is that of one, and `pieces`
    # has their sizes if these differ.
    outputs: Tensors


class ResponsesFrame(FrameBase, tag="responses"):
    """Instance to server: responses of one or several batches that were ready together."""

    started_ns: Nanoseconds
    finished_ns: Nanoseconds
    items: list[ResponseItem]
    returned_batch: int = 0  # `execute` of a model.py returned for this batch; responses may follow
    rows: ResponseRows | None = None  # they come before the items
    processor_ns: Amount = 0
    copied: tuple[Amount, Amount] = (0, 0)


class BatchFailure(FrameBase, tag="failure"):
    """Instance to server: all requests of the batch that are still open failed."""

    batch: int
    started_ns: Nanoseconds
    finished_ns: Nanoseconds
    error: str
    error_code: Code
    origin: FailureOrigin | None = None  # of the exception behind it; not for clients
    processor_ns: Amount = 0
    copied: tuple[Amount, Amount] = (0, 0)


Answer = BatchResult | ResponsesFrame | BatchFailure
ANSWERS = (BatchResult, ResponsesFrame, BatchFailure)  # to look for one is faster than in a union

Frame = (
    Execute
    | Cancel
    | Credit
    | MemoryFrame
    | BatchResult
    | ResponsesFrame
    | BatchFailure
    | Initialize
    | Initialized
    | Finalize
    | Finalized
    | CheckReady
    | ReadyReport
    | InferCallFrame
    | InferReply
    | CancelCall
    | CallCredit
    | ServiceCall
    | ServiceReply
    | WorkerLogLine
    | LogChange
    | DropRegions
    | ReleaseExports
    | DeviceNotes
    | FrontEndFrame
)

# What a worker may say; the others belong to the server and its front ends.
WorkerFrame = (
    BatchResult
    | ResponsesFrame
    | BatchFailure
    | MemoryFrame
    | Initialized
    | Finalized
    | ReadyReport
    | InferCallFrame
    | CancelCall
    | CallCredit
    | ServiceCall
    | WorkerLogLine
    | DeviceNotes
)

_decoder = msgspec.msgpack.Decoder(Frame)
_worker_decoder = msgspec.msgpack.Decoder(WorkerFrame)

# Records of workers that are larger may have long texts and files, but not many values: a megabyte
# of small ones becomes objects of fifty, which takes the event loop a twentieth of a second.
_MANY_VALUES_BYTES = 2 << 20
_VALUE_BYTES = 8  # so much each of them counts at least
_DETAIL_BYTES = 1 << 10  # a larger group of values is looked into, as it may have a long text
_Parts = Annotated[list[msgspec.Raw], msgspec.Meta(max_length=_MANY_VALUES_BYTES // _VALUE_BYTES)]
_Members = Annotated[
    dict[int | str, msgspec.Raw], msgspec.Meta(max_length=_MANY_VALUES_BYTES // _VALUE_BYTES)
]
_parts_decoder = msgspec.msgpack.Decoder(_Parts)
_members_decoder = msgspec.msgpack.Decoder(_Members)
_ARRAYS = frozenset((*range(0x90, 0xA0), 0xDC, 0xDD))  # first bytes, of MessagePack
_MAPS = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))
_find_place = re.compile(r" - at `\$((?:\[\d+\])*)").search


def encode_record(frame: Frame) -> bytes:
    """Returns the record of a frame in MessagePack."""
    return _encoder.encode(frame)


def decode_record(record: Buffer) -> Frame:
    """Returns the frame of a record; ValueError if it is none."""
    try:
        frame: Frame = _decoder.decode(record)
    except RecursionError:
        raise ValueError("expected a frame, got one that is nested too deeply") from None
    return frame


def encode_frame(frame: Frame, inline: Sequence[Buffer] = ()) -> bytes:
    """Returns the message with the bytes of its small tensors."""
    record = _encoder.encode(frame)
    length = len(record)
    padding = _PADDING[-(4 + length) % INLINE_ALIGNMENT]
    return b"".join([_LENGTH.pack(length), record, padding, *inline])


def decode_frame(message: bytearray) -> tuple[Frame, int]:
    """Returns the record of a message, and the offset at which its payload begins.

    Raises:
        ValueError: It is not a message of a channel.
    """
    if len(message) < _LENGTH.size:
        raise ProtocolError(f"expected a message, got {len(message)} bytes")
    end = 4 + _LENGTH.unpack_from(message)[0]
    return decode_record(memoryview(message)[4:end]), end + (-end % INLINE_ALIGNMENT)


def decode_worker_frame(message: bytearray) -> tuple[WorkerFrame, int]:
    """Like `decode_frame`, for a message of a worker: what no worker may say is refused.

    Raises:
        ProtocolError: It is not a message of a worker; the text names the first wrong value.
    """
    if len(message) < _LENGTH.size:
        raise ProtocolError(f"expected a message, got {len(message)} bytes")
    end = 4 + _LENGTH.unpack_from(message)[0]
    record = memoryview(message)[4:end]
    try:  # as `decode_worker_record` does; a call of it would take a tenth of the time
        if end > _MANY_VALUES_BYTES:
            _check_structure(record)
        return _worker_decoder.decode(record), end + (-end % INLINE_ALIGNMENT)
    except ProtocolError:
        raise
    except (ValueError, RecursionError) as error:
        raise ProtocolError(_explain(record, error)) from None


def decode_worker_record(record: Buffer) -> WorkerFrame:
    """Like `decode_record`, for a record of a worker; raises ProtocolError."""
    try:
        if len(record) > _MANY_VALUES_BYTES:
            _check_structure(record)
        frame: WorkerFrame = _worker_decoder.decode(record)
    except ProtocolError:
        raise
    except (ValueError, RecursionError) as error:
        raise ProtocolError(_explain(record, error)) from None
    return frame


def _check_structure(record: Buffer) -> None:
    """Refuse a record of many values before objects are made of them."""
    size = 0
    pending: list[Buffer | msgspec.Raw] = [record]
    while pending:
        part = pending.pop()
        kind = memoryview(part)[0]
        values: list[msgspec.Raw]
        if kind in _ARRAYS:
            values = _parts_decoder.decode(part)
        else:
            values = list(_members_decoder.decode(part).values())
        for value in values:
            view = memoryview(value)
            is_plain = view[0] not in _ARRAYS and view[0] not in _MAPS
            size += _VALUE_BYTES if is_plain else max(_VALUE_BYTES, len(view))
            if not is_plain and len(view) > _DETAIL_BYTES:
                size -= len(view)
                pending.append(value)
            if size > _MANY_VALUES_BYTES:
                raise ProtocolError(
                    f"expected a record with values of at most {_MANY_VALUES_BYTES} bytes beside "
                    f"texts, got more in {len(record)} bytes"
                )


def _explain(record: Buffer, error: Exception) -> str:
    """Returns what is wrong with a record, with the value that was refused."""
    if isinstance(error, RecursionError):
        return "expected a frame, got one that is nested too deeply"
    text = str(error)
    text = text[:1].lower() + text[1:]
    try:
        value = msgspec.msgpack.decode(record) if len(record) <= _MANY_VALUES_BYTES else []
        kind = value[0] if isinstance(value, list) and value else None
        place = _find_place(text)
        for index in re.findall(r"\d+", place[1]) if place else ():
            value = value[int(index)]
    except (ValueError, RecursionError, IndexError, TypeError):
        return f"{text}, in a record of {len(record)} bytes"
    if place is None:
        return f"{text}, in a frame of kind {kind!r:.40}"
    return f"{text}, in a frame of kind {kind!r:.40}; got {value!r:.80}"
