# SPDX-License-Identifier: Apache-2.0
"""The messages on the channel to an instance, and how they are encoded.

An encoded message is a 4-byte length, the record in MessagePack, padding, then the bytes of small
tensors. Larger tensors are references into an arena. New fields are appended at the end of a
record.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import msgspec

from pytriton.base.messages import ParameterValue, TraceContext
from pytriton.runtime.transport.frontend_frames import FrontEndFrame
from pytriton.runtime.transport.log_frames import LogChange
from pytriton.runtime.transport.refs import BlockRef, MemoryUpdate, PartRef, SegmentRef, TensorRef
from pytriton.runtime.transport.worker_frames import (
    CallCredit,
    CancelCall,
    CheckReady,
    Finalize,
    Finalized,
    InferCall,
    InferReply,
    Initialize,
    Initialized,
    LogLine,
    ReadyReport,
    ServiceCall,
    ServiceReply,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    Buffer = bytes | bytearray | memoryview

__all__ = [
    "INLINE_ALIGNMENT",
    "BatchFailure",
    "BatchResult",
    "BlockRef",
    "Cancel",
    "Credit",
    "Execute",
    "Frame",
    "MemoryFrame",
    "MemoryUpdate",
    "PartRef",
    "RequestDetails",
    "ResponseItem",
    "Responses",
    "SegmentRef",
    "TensorRef",
    "decode_frame",
    "decode_record",
    "encode_frame",
    "encode_record",
]

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


class Responses(msgspec.Struct, tag="responses", array_like=True):
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
    | Responses
    | BatchFailure
    | Initialize
    | Initialized
    | Finalize
    | Finalized
    | CheckReady
    | ReadyReport
    | InferCall
    | InferReply
    | CancelCall
    | CallCredit
    | ServiceCall
    | ServiceReply
    | LogLine
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
