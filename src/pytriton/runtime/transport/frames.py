# SPDX-License-Identifier: Apache-2.0
"""The messages on the channel to an instance, and how they are encoded.

An encoded message is a 4-byte length, the record in MessagePack, padding, then the bytes of small
tensors. Larger tensors are references into an arena. New fields are appended at the end of a
record.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import msgspec

from pytriton.base.log_switches import LogSwitches
from pytriton.base.messages import ParameterValue, TraceContext
from pytriton.runtime.transport.frontend_frames import FrontEndFrame
from pytriton.runtime.transport.refs import MemoryUpdate, TensorRef

if TYPE_CHECKING:
    from collections.abc import Sequence

    Buffer = bytes | bytearray | memoryview


PACKAGE_FILE = "pytriton:"


class FunctionTensor(msgspec.Struct, array_like=True):
    """An input or output of a bound function, as its `Tensor` says it."""

    name: str | None
    shape: list[int]
    dtype: str  # numpy's name of the type
    is_optional: bool = False


class FunctionSource(msgspec.Struct, array_like=True):
    """A bound function that a worker imports, and the other arguments of its `bind`."""

    reference: str  # module:function
    search_paths: list[str]  # searched for the module, too, if they exist there
    config: dict[str, Any]  # Triton's ModelConfig, with warm-ups
    inputs: list[FunctionTensor] | None = None  # None: annotations say them
    outputs: list[FunctionTensor] | None = None
    is_strict: bool = False


class Initialize(msgspec.Struct, tag="initialize", array_like=True):
    """Server to worker, first: the code to load, and the arguments of its `initialize`."""

    model_path: str  # the absolute path of the file
    package: str  # the package that it is imported in: the version; "" for code of a backend
    arguments: dict[str, str]
    output_names: list[str]  # all configured outputs
    is_decoupled: bool = False
    is_batching: bool = False  # inputs have a batch dimension, along which they are split
    completes_config: bool = False  # only `auto_complete_config` is called, then the worker ends
    memory: MemoryUpdate | None = None
    log: LogSwitches = LogSwitches()
    is_library: bool = False  # `model_path` is a compiled backend, which is loaded, not imported
    backend_config: dict[str, str] = {}  # settings of `--backend-config` that hold for this backend
    model_directory: str = ""  # of `get_model_dir`; "": that of the file
    polling_cores: int = 0  # of a worker that may poll for its next batch; 0: it must not
    # On another machine: how its files can be there, for the error if they are not. Then the path
    # of a file in this package begins with `PACKAGE_FILE`, as the package may be elsewhere there.
    sharing: str = ""
    function: FunctionSource | None = None  # a bound function is imported, not `model_path`


class Initialized(msgspec.Struct, tag="initialized", array_like=True):
    """Worker to server: the model can run batches, or the reason why it cannot."""

    error: str = ""
    config: str = ""  # the JSON result of `auto_complete_config`
    has_ready_check: bool = False  # the model has `is_ready`
    is_async: bool = False  # `execute` is a coroutine function: its calls run concurrently
    memory: MemoryUpdate | None = None
    error_code: int = -1  # one of `ErrorCode` if the error names one, negative otherwise
    # Of a bound function: the batches that it runs at the same time, each of which occupies its
    # slot until it is answered. 0: a model.py, which tells when `execute` has returned.
    concurrency: int = 0

    @property
    def is_failure(self) -> bool:
        """Whether the model could not be loaded; an error with a code may have no text."""
        return bool(self.error) or self.error_code >= 0


class Finalize(msgspec.Struct, tag="finalize", array_like=True):
    """Server to worker, last: call `finalize`, then exit."""

    memory: MemoryUpdate | None = None


class Finalized(msgspec.Struct, tag="finalized", array_like=True):
    """Process of a group to server, last: its `finalize` has returned.

    It waits for the others then: the end of any process is the end of the group.
    """

    memory: MemoryUpdate | None = None


class CheckReady(msgspec.Struct, tag="check", array_like=True):
    """Server to worker: call `is_ready`."""

    call: int
    memory: MemoryUpdate | None = None


class ReadyReport(msgspec.Struct, tag="ready", array_like=True):
    """Worker to server: the result of `is_ready`."""

    call: int
    is_ready: bool
    memory: MemoryUpdate | None = None


class InferCallFrame(msgspec.Struct, tag="infer", array_like=True):
    """Worker to server: infer with another model. The worker numbers its calls."""

    call: int
    model_name: str
    model_version: int  # -1: the newest
    inputs: list[TensorRef]
    outputs: list[str] = []  # empty: all
    id: str = ""
    correlation_id: int | str = 0
    flags: int = 0
    timeout_us: int = 0
    parameters: dict[str, ParameterValue] = {}
    is_decoupled: bool = False  # the caller accepts any number of responses
    blocked_batch: int = 0  # the batch whose `execute` blocks the model's thread on this call, or 0
    trace: TraceContext | None = None  # of the request for which the call is made
    memory: MemoryUpdate | None = None
    batch: int = 0  # the batch whose `execute` made the call, if known and not `blocked_batch`
    blocks_loop: bool = False  # the blocked thread is the one that runs all batches' coroutines
    keeps_errors: bool = (
        False  # refusals keep their code and text, without the Python backend's words
    )
    priority: int = 0


class InferReply(msgspec.Struct, tag="reply", array_like=True):
    """Server to worker: a response to an `InferCallFrame`, an error, or an end without tensors."""

    call: int
    outputs: list[TensorRef] | None = None
    is_final: bool = True
    error: str | None = None
    error_code: int = 0
    parameters: dict[str, ParameterValue] | None = None
    memory: MemoryUpdate | None = None


class CancelCall(msgspec.Struct, tag="cancel_call", array_like=True):
    """Worker to server: the caller cancels an `InferCallFrame`; its end is still reported."""

    call: int
    memory: MemoryUpdate | None = None


class CallCredit(msgspec.Struct, tag="call_credit", array_like=True):
    """Worker to server: the caller of a decoupled model consumed `count` more responses."""

    call: int
    count: int
    memory: MemoryUpdate | None = None


class ServiceCall(msgspec.Struct, tag="service", array_like=True):
    """Worker to server: a call of a service; `docs/internals.md` lists the actions."""

    call: int  # 0: no reply is expected
    action: str
    arguments: dict[str, Any]
    memory: MemoryUpdate | None = None


class ServiceReply(msgspec.Struct, tag="service_reply", array_like=True):
    """Server to worker: the result of a `ServiceCall`, or an error."""

    call: int
    value: Any = None
    error: str | None = None
    memory: MemoryUpdate | None = None


class WorkerLogLine(msgspec.Struct, tag="log", array_like=True):
    """Worker to server: a line for the server's log."""

    level: str  # INFO, WARNING, ERROR or VERBOSE
    message: str
    file: str
    line: int
    memory: MemoryUpdate | None = None
    request_ids: list[str] = []  # of those requests that caused it, as the log shows them


class LogChange(msgspec.Struct, tag="log_change", array_like=True):
    """Server to a worker, or core to a front end: what the log has from now on."""

    switches: LogSwitches
    memory: MemoryUpdate | None = None


INLINE_ALIGNMENT = 16
_LENGTH = struct.Struct("<I")
_PADDING = [bytes(size) for size in range(INLINE_ALIGNMENT)]


class RequestDetails(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """The details of a request that only models of the Python backend get."""

    correlation_id: int | str = 0
    flags: int = 0
    timeout_us: int = 0


class Execute(msgspec.Struct, tag="execute", array_like=True):
    """Server to instance: run these requests as a batch. Positions are indices into `rows`."""

    batch: int
    rows: list[int]  # batch dimension of each request
    inputs: list[TensorRef]  # each holds the whole batch
    ids: dict[int, str] = {}
    parameters: dict[int, dict[str, ParameterValue]] = {}
    outputs: dict[int, list[str]] = {}  # requested names, of requests that do not want all
    memory: MemoryUpdate | None = None
    traces: dict[int, TraceContext] = {}  # of the traced requests
    details: dict[int, RequestDetails] = {}  # of the requests whose details are not the defaults


class Cancel(msgspec.Struct, tag="cancel", array_like=True):
    """Server to instance: this request was cancelled."""

    batch: int
    position: int
    memory: MemoryUpdate | None = None


class Credit(msgspec.Struct, tag="credit", array_like=True):
    """Server to instance: the client of this request has consumed `count` more responses."""

    batch: int
    position: int
    count: int
    memory: MemoryUpdate | None = None


class MemoryFrame(msgspec.Struct, tag="memory", array_like=True):
    """In both directions: only an update about memory."""

    memory: MemoryUpdate | None = None


class BatchResult(msgspec.Struct, tag="batch", array_like=True):
    """Instance to server: a response to each request of a batch; outputs hold the whole batch."""

    batch: int
    started_ns: int
    finished_ns: int
    outputs: list[TensorRef]
    memory: MemoryUpdate | None = None


class ResponseItem(msgspec.Struct, array_like=True):
    """One response, an error in its place, or an end without tensors."""

    batch: int
    position: int
    outputs: list[TensorRef] | None = None
    is_final: bool = True
    error: str | None = None
    error_code: int = 0
    parameters: dict[str, ParameterValue] | None = None
    is_rescheduled: bool = False  # there is no response: the request is to be executed again


class ResponsesFrame(msgspec.Struct, tag="responses", array_like=True):
    """Instance to server: responses of one or several batches that were ready together."""

    started_ns: int
    finished_ns: int
    items: list[ResponseItem]
    memory: MemoryUpdate | None = None
    returned_batch: int = 0  # `execute` of a model.py returned for this batch; responses may follow


class BatchFailure(msgspec.Struct, tag="failure", array_like=True):
    """Instance to server: all requests of the batch that are still open failed."""

    batch: int
    started_ns: int
    finished_ns: int
    error: str
    error_code: int
    memory: MemoryUpdate | None = None


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
    | FrontEndFrame
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


def encode_record(frame: Frame) -> bytes:
    """Returns the record of a frame in MessagePack."""
    return _encoder.encode(frame)


def decode_record(record: Buffer) -> Frame:
    """Returns the frame of a record."""
    frame: Frame = _decoder.decode(record)
    return frame


def encode_frame(frame: Frame, inline: Sequence[Buffer] = ()) -> bytes:
    """Returns the message with the bytes of its small tensors."""
    record = _encoder.encode(frame)
    length = len(record)
    padding = _PADDING[-(4 + length) % INLINE_ALIGNMENT]
    return b"".join([_LENGTH.pack(length), record, padding, *inline])


def decode_frame(message: bytearray) -> tuple[Frame, int]:
    """Returns the record of a message, and the offset at which its payload begins."""
    end = 4 + _LENGTH.unpack_from(message)[0]
    frame = _decoder.decode(memoryview(message)[4:end])
    return frame, end + (-end % INLINE_ALIGNMENT)
