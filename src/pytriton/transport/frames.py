# SPDX-License-Identifier: Apache-2.0
"""What crosses the channel to an instance: typed records, and where their tensors' bytes are.

On the wire a message is a 4-byte length, the record in MessagePack, padding, then the bytes of
tensors that are small enough to travel inside it. Larger tensors are references into an arena. New
fields are appended last.
"""

from __future__ import annotations

import struct

import msgspec

from pytriton.messages import ParameterValue, TraceContext
from pytriton.transport.refs import BlockRef, MemoryUpdate, SegmentRef, TensorRef
from pytriton.transport.worker_frames import (
    CallCredit,
    CancelCall,
    CheckReady,
    Finalize,
    InferCall,
    InferReply,
    Initialize,
    Initialized,
    LogLine,
    ReadyReport,
    ServiceCall,
    ServiceReply,
)

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
    "RequestDetails",
    "ResponseItem",
    "Responses",
    "SegmentRef",
    "Spill",
    "TensorRef",
    "decode_frame",
    "encode_frame",
]

INLINE_ALIGNMENT = 16
_LENGTH = struct.Struct("<I")


class RequestDetails(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """What only models of the Python backend get to know of a request."""

    correlation_id: int | str = 0
    flags: int = 0
    timeout_us: int = 0


class Execute(msgspec.Struct, tag="execute", array_like=True):
    """Server to instance: run these requests together. Positions below are indices into `rows`."""

    batch: int
    rows: list[int]  # batch dimension of each request
    inputs: list[TensorRef]  # each holds the whole batch
    ids: dict[int, str] = {}
    parameters: dict[int, dict[str, ParameterValue]] = {}
    outputs: dict[int, list[str]] = {}  # requested names, where not all
    memory: MemoryUpdate | None = None
    traces: dict[int, TraceContext] = {}  # of the traced requests
    details: dict[int, RequestDetails] = {}  # where they are not the defaults


class Cancel(msgspec.Struct, tag="cancel", array_like=True):
    """Server to instance: nobody waits for this request any more."""

    batch: int
    position: int
    memory: MemoryUpdate | None = None


class Credit(msgspec.Struct, tag="credit", array_like=True):
    """Server to instance: the client of this request took so many more responses."""

    batch: int
    position: int
    count: int
    memory: MemoryUpdate | None = None


class MemoryFrame(msgspec.Struct, tag="memory", array_like=True):
    """Either way: only what is said about memory."""

    memory: MemoryUpdate | None = None


class BatchResult(msgspec.Struct, tag="batch", array_like=True):
    """Instance to server: one response to every request of a batch, outputs still in one piece."""

    batch: int
    started_ns: int
    finished_ns: int
    outputs: list[TensorRef]
    memory: MemoryUpdate | None = None


class ResponseItem(msgspec.Struct, array_like=True):
    """One response, or the error or bare end that takes its place."""

    batch: int
    position: int
    outputs: list[TensorRef] | None = None
    is_final: bool = True
    error: str | None = None
    error_code: int = 0
    parameters: dict[str, ParameterValue] | None = None
    is_rescheduled: bool = False  # no response: the request is to be executed once more


class Responses(msgspec.Struct, tag="responses", array_like=True):
    """Instance to server: responses that were ready together, of one batch or of several."""

    started_ns: int
    finished_ns: int
    items: list[ResponseItem]
    memory: MemoryUpdate | None = None
    returned_batch: int = 0  # a model.py returned from this batch's execute; answers may follow


class BatchFailure(msgspec.Struct, tag="failure", array_like=True):
    """Instance to server: every request of the batch that is still open failed."""

    batch: int
    started_ns: int
    finished_ns: int
    error: str
    error_code: int
    memory: MemoryUpdate | None = None


class Spill(msgspec.Struct, tag="spill", array_like=True):
    """Either way: the message itself is in a block because it is too large for the socket."""

    block: int
    size: int
    memory: MemoryUpdate | None = None


Frame = (
    Execute
    | Cancel
    | Credit
    | MemoryFrame
    | BatchResult
    | Responses
    | BatchFailure
    | Spill
    | Initialize
    | Initialized
    | Finalize
    | CheckReady
    | ReadyReport
    | InferCall
    | InferReply
    | CancelCall
    | CallCredit
    | ServiceCall
    | ServiceReply
    | LogLine
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


def encode_frame(frame: Frame) -> bytes:
    """The message up to where its payload begins."""
    record = _encoder.encode(frame)
    length = len(record)
    padding = -(4 + length) % INLINE_ALIGNMENT
    return _LENGTH.pack(length) + record + bytes(padding)


def decode_frame(message: memoryview) -> tuple[Frame, int]:
    """The record of a message, and where its payload begins."""
    (length,) = _LENGTH.unpack_from(message)
    frame = _decoder.decode(message[4 : 4 + length])
    return frame, 4 + length + (-(4 + length) % INLINE_ALIGNMENT)
