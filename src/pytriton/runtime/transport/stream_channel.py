# SPDX-License-Identifier: Apache-2.0
"""A channel between machines: frames over a stream socket, each followed by its tensors.

A message is a head with two sizes, the record in MessagePack, padding, then the tensors, each
aligned. It is received as a whole, so that all tensors of a message share one piece of memory.

The kernel's keepalive finds a machine that is gone only while nothing is being sent. With data on
its way the kernel tries for a quarter of an hour. Its option TCP_USER_TIMEOUT shortens that, but it
also ends connections to machines that are well if a busy process does not read for that time.
(16 MiB for a stopped process: the connection was lost after 4.3 s.) So `is_peer_gone` asks the
kernel how long it has waited for an answer: a machine answers for its processes.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from pytriton.base.errors import UnavailableError, resource_error
from pytriton.runtime.transport.arena import DEFAULT_LIMIT_BYTES
from pytriton.runtime.transport.frames import (
    INLINE_ALIGNMENT,
    Execute,
    decode_record,
    decode_worker_record,
    encode_record,
)
from pytriton.runtime.transport.link import close_in_forked_children
from pytriton.runtime.transport.payload import Payload, Received, UnreadReceived
from pytriton.runtime.transport.peer_account import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from pytriton.runtime.transport.frames import Frame
    from pytriton.runtime.transport.payload import Buffer
    from pytriton.runtime.transport.peer_account import PeerAccount

# The magic number tells that a peer has lost its place; then the sizes of the record and of the
# tensors after it. The head is aligned as tensors are.
_HEAD = struct.Struct("<IIQ")
HEAD_BYTES = _HEAD.size
MAGIC = 0x72467470
# Upper bounds for the memory that a broken peer can make us reserve. Its pages are used only as
# bytes arrive.
MAX_RECORD_BYTES = 64 << 20
MAX_TENSOR_BYTES = DEFAULT_LIMIT_BYTES

# Messages up to this size are read together, and each is copied once. Larger ones are received in
# memory of their own.
SCRATCH_BYTES = 64 << 10
# A peer that sends as fast as we read must not keep an event loop from its other work.
_MAX_READS = 8
_NO_BLOCKS: dict[int, NDArray[np.uint8]] = {}
_unpack_head = _HEAD.unpack_from
# Tensors up to this size, and pieces that are smaller on average, are copied into one message: that
# costs less than a vector of pieces.
_JOINED_BYTES = 64 << 10
_SMALL_PIECE_BYTES = 2 << 10
_MAX_PIECES = 1024  # in one system call; Linux and macOS allow no more
# A peer that reads as fast as we send must not keep an event loop from its other work.
_MAX_WRITES = 8
_PADDING = [bytes(size) for size in range(INLINE_ALIGNMENT)]
# A machine that is gone is noticed after this time, whatever its interpreter is busy with. That is
# for idle connections; `is_peer_gone` is for those with data on its way.
_IDLE_S = 1
_PROBE_INTERVAL_S = 1
_PROBES = 3
# How long a machine may be silent before it counts as gone, as with keepalive.
SILENCE_MS = 4000
CHECK_INTERVAL_S = 1.0
# Attempts that were not answered. After the first, the answer may be on its way.
_ATTEMPTS = 2
# From `struct tcp_info` in <linux/tcp.h>: retransmits, probes, and the age of the last ACK in ms.
_FIELDS = struct.Struct("=2xBB52xI")


def pack_head(record_bytes: int, tensor_bytes: int) -> bytes:
    """Returns the head of a message."""
    return _HEAD.pack(MAGIC, record_bytes, tensor_bytes)


class StreamReader:
    """The receiving end of a stream socket.

    Attributes:
        is_blocking: Whether the socket blocks.
    """

    def __init__(
        self, sock: socket.socket, decode: Callable[[Buffer], Frame] = decode_record
    ) -> None:
        self._socket = sock
        self._decode = decode
        self.is_blocking = sock.getblocking()
        self._scratch = bytearray(SCRATCH_BYTES)
        self._view = memoryview(self._scratch)
        self._start = 0  # of the unread bytes in the scratch memory
        self._end = 0
        self._large: memoryview | None = None  # a message whose rest is still to come
        self._filled = 0  # of the large message
        self._excess = 0  # bytes after the large message to drop, as there was no memory for them
        self._lack = ""  # the reason

    @property
    def has_message(self) -> bool:
        """Whether `receive` returns a message, or an error, without reading from the socket."""
        if self._large is not None or self._end - self._start < HEAD_BYTES:
            return False
        magic, record_bytes, tensor_bytes = _unpack_head(self._scratch, self._start)
        size = HEAD_BYTES + record_bytes + -record_bytes % INLINE_ALIGNMENT + tensor_bytes
        is_complete: bool = self._start + size <= self._end
        return is_complete or magic != MAGIC

    def receive(self, flags: int = 0) -> Received | None:
        """Returns the next message; None if a non-blocking socket has none.

        Raises:
            EOFError: The connection has ended, or the machine cannot be reached any more.
            ValueError: This is not the stream of a channel.
        """
        if self._start < self._end and (received := self._take()) is not None:
            return received
        reads = 0
        while self.is_blocking or reads < _MAX_READS:
            reads += 1
            if self._large is not None:
                if not self._read(self._large_room(self._large), flags):
                    return None
                if (received := self._take_large(self._large)) is not None:
                    return received
            elif not self._read(self._room(), flags):
                return None
            elif (received := self._take()) is not None:
                return received
        return None

    def close(self) -> None:
        """Free memory; this object may be kept longer."""
        self._large = None
        self._start = self._end = 0
        self._scratch = bytearray()
        self._view = memoryview(self._scratch)

    def _take(self) -> Received | None:
        """Returns a message that is in the scratch memory; begins to receive a large one."""
        start, end = self._start, self._end
        if end - start < HEAD_BYTES:
            return None
        magic, record_bytes, tensor_bytes = _unpack_head(self._scratch, start)
        # Before anything is reserved: a peer that has lost its place sends arbitrary sizes.
        if magic != MAGIC or record_bytes > MAX_RECORD_BYTES or tensor_bytes > MAX_TENSOR_BYTES:
            begin = bytes(self._view[start : start + HEAD_BYTES])
            raise ProtocolError(
                f"expected a message of at most {MAX_RECORD_BYTES} bytes and tensors of at most "
                f"{MAX_TENSOR_BYTES} bytes, got one that begins with {begin!r}"
            )
        at = HEAD_BYTES + record_bytes
        tensors_at = at + -at % INLINE_ALIGNMENT
        size = tensors_at + tensor_bytes
        if start + size <= end:
            self._start = start + size
            # A copy, as the scratch memory is used again while tensors of this message are.
            message = bytearray(self._view[start : start + size])
            frame = self._decode(memoryview(message)[HEAD_BYTES:at])
            return Received(frame, message, tensors_at, _NO_BLOCKS)
        if size > SCRATCH_BYTES:
            self._begin_large(size, tensors_at)
        return None

    def _begin_large(self, size: int, tensors_at: int) -> None:
        try:
            large = np.empty(size, np.uint8)  # a bytearray would be zeroed first
            self._excess = 0
        except MemoryError as error:
            # The record is received, so that its requests can be answered.
            self._lack = str(resource_error(error))
            large = np.empty(tensors_at, np.uint8)
            self._excess = size - tensors_at
        self._large = large.data
        arrived = self._view[self._start : self._end]
        self._filled = len(arrived)
        kept = arrived[: len(self._large)]
        self._large[: len(kept)] = kept
        self._start = self._end = 0

    def _large_room(self, large: memoryview) -> memoryview:
        """Returns where the next bytes of the large message go."""
        # Never more than the rest of this message: the next one belongs to the scratch memory.
        if self._filled < len(large):
            return large[self._filled :]
        return self._view[: len(large) + self._excess - self._filled]

    def _take_large(self, message: memoryview) -> Received | None:
        """Returns the large message if all of it has arrived."""
        if self._filled < len(message) + self._excess:
            return None
        self._large = None
        at = HEAD_BYTES + _unpack_head(message)[1]
        frame = self._decode(message[HEAD_BYTES:at])
        start = at + -at % INLINE_ALIGNMENT
        if self._excess:
            return UnreadReceived(frame, message, start, _NO_BLOCKS, self._lack)
        return Received(frame, message, start, _NO_BLOCKS)

    def _read(self, room: memoryview | bytearray, flags: int) -> bool:
        """Read into the scratch memory or the large message; returns whether anything came."""
        try:
            size = self._socket.recv_into(room, 0, flags)
        except BlockingIOError:
            return False
        except OSError as error:  # a reset, or keepalive found that the machine is gone
            raise EOFError from error
        if not size:
            raise EOFError
        if self._large is None:
            self._end += size
        else:
            self._filled += size
        return True

    def _room(self) -> memoryview | bytearray:
        """Returns the free end of the scratch memory; it has room for the rest of a message."""
        size = self._end - self._start
        if not size:
            self._start = self._end = 0
            return self._scratch
        if self._start:
            # Messages that fit into the scratch memory have to lie in it as a whole.
            self._view[:size] = self._view[self._start : self._end]
            self._start, self._end = 0, size
        return self._view[size:]


class StreamChannel:
    """One end of a connection that shares no memory; see `Channel`.

    Large pieces are not copied: what does not fit into the socket is kept as views until `flush`.
    So nothing may change the tensors of a message after it was sent. In the server nothing does:
    they are parts of requests and answers, which are read only, and the views keep them alive. A
    worker sends with a blocking socket, and has nothing left when `send` returns.

    With an `account` the peer is a worker: see `MemoryChannel`. What it has not read is counted
    there, but for the inputs of batches, of which it has no more than it may run.
    """

    arena = None
    maps_memory = False
    has_memory_update = False
    has_idle_memory = False
    reserved_bytes = 0

    def __init__(self, sock: socket.socket, account: PeerAccount | None = None) -> None:
        close_in_forked_children(sock)
        self._account = account
        self._socket = sock
        self.fileno = sock.fileno
        self._reader = StreamReader(
            sock, decode_record if account is None else decode_worker_record
        )
        self.receive = self._reader.receive
        self._unsent: deque[memoryview] = deque()
        self._counted: deque[int] = deque()  # how many bytes of each the account has
        self._send_lock = threading.Lock()
        self.releases_at_once = False

    def set_blocking(self, is_blocking: bool) -> None:
        """See `Channel`."""
        self._socket.setblocking(is_blocking)
        self._reader.is_blocking = is_blocking

    def payload(self) -> Payload:
        """See `Channel`."""
        return Payload(None)

    def send(self, frame: Frame, payload: Payload | None = None) -> bool:
        """See `Channel`; raises UnavailableError if the tensors are too large."""
        pieces: Sequence[Buffer] = () if payload is None else payload.inline
        size = 0 if payload is None else payload.inline_size
        record = encode_record(frame)
        length = len(record)
        if length > MAX_RECORD_BYTES:
            raise ValueError(f"expected a frame of at most {MAX_RECORD_BYTES} bytes, got {length}")
        if size > MAX_TENSOR_BYTES:
            raise UnavailableError(
                f"no room for {size} bytes of tensors: one message to another machine has at most "
                f"{MAX_TENSOR_BYTES} bytes"
            )
        head = (pack_head(length, size), record, _PADDING[-length % INLINE_ALIGNMENT])
        with self._send_lock:
            return self._send(head, pieces, size, is_batch=type(frame) is Execute)

    def _send(
        self, head: Sequence[bytes], pieces: Sequence[Buffer], size: int, *, is_batch: bool
    ) -> bool:
        unsent = self._unsent
        if size <= _JOINED_BYTES or size < len(pieces) * _SMALL_PIECE_BYTES:
            message = b"".join((*head, *pieces))
            sent = 0
            if not unsent:  # nearly always the socket takes all of it, and nothing has to be queued
                with contextlib.suppress(BlockingIOError):
                    sent = self._socket.send(message)
            if sent == len(message):
                return False
            rest = [memoryview(message)[sent:]]
        else:
            # Without empty ones: `_flush` counts a piece as sent by its bytes.
            rest = [memoryview(b"".join(head)), *(memoryview(each) for each in pieces if len(each))]
        if self._account is not None:
            sizes = [0 if is_batch else piece.nbytes for piece in rest]
            self._account.add_unread(sum(sizes))
            self._counted += sizes
        unsent += rest
        self._flush()
        return bool(unsent)

    @property
    def has_message(self) -> bool:
        """See `Channel`."""
        return self._reader.has_message

    @property
    def has_failed(self) -> bool:
        """See `Channel`."""
        return self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0

    @property
    def has_unsent(self) -> bool:
        """See `Channel`."""
        return bool(self._unsent)

    def flush(self) -> None:
        """See `Channel`."""
        with self._send_lock:
            self._flush()

    def _flush(self) -> None:
        unsent = self._unsent
        writes = 0
        while unsent and (self._reader.is_blocking or writes < _MAX_WRITES):
            writes += 1
            try:
                sent = self._socket.sendmsg(list(islice(unsent, _MAX_PIECES)))
            except BlockingIOError:
                return
            while sent:
                piece = unsent[0]
                if sent < len(piece):
                    unsent[0] = piece[sent:]
                    break
                sent -= len(piece)
                unsent.popleft()
                if self._account is not None:
                    self._account.unread_bytes -= self._counted.popleft()

    @property
    def has_unread(self) -> bool:
        """See `Channel`; data counts as read when the machine of the peer has it."""
        return bool(self._unsent)

    def close(self) -> None:
        """See `Channel`."""
        self._socket.close()
        if self._account is not None:
            self._account.unread_bytes -= sum(self._counted)
            self._counted.clear()
        self._unsent.clear()
        self._reader.close()

    def take_descriptors(self, count: int) -> list[int]:
        """See `Channel`; a descriptor cannot leave its machine."""
        raise NotImplementedError(f"{count} descriptors cannot come from another machine")

    def send_memory_update(self) -> None:
        """See `Channel`; nothing is shared."""

    def queue_dropped_segments(self, segments: Iterable[int]) -> None:
        """See `Channel`; nothing is shared."""

    def trim(self, idle_seconds: float) -> None:
        """See `Channel`; nothing is shared."""

    def __repr__(self) -> str:
        return f"<StreamChannel fd={self.fileno()}>"


def tune_stream(sock: socket.socket) -> None:
    """Set the options of a connection to another machine; does nothing on a Unix socket."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # macOS has another name for the first of them.
    for names, value in (
        (("TCP_KEEPIDLE", "TCP_KEEPALIVE"), _IDLE_S),
        (("TCP_KEEPINTVL",), _PROBE_INTERVAL_S),
        (("TCP_KEEPCNT",), _PROBES),
    ):
        option = next((getattr(socket, name) for name in names if hasattr(socket, name)), None)
        if option is not None:
            with contextlib.suppress(OSError):  # a system that knows the name but not the option
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


def is_peer_gone(sock: socket.socket) -> bool:
    """Returns whether data is on its way to a machine that has not answered for some seconds.

    False if the system does not tell, or the socket is not of TCP.
    """
    option = getattr(socket, "TCP_INFO", None)  # only Linux has this form of it
    if option is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, option, _FIELDS.size)
    except OSError:  # it is closed
        return False
    return len(info) == _FIELDS.size and is_silent(info)


def is_silent(info: bytes) -> bool:
    """Returns whether the beginning of `struct tcp_info` shows a silent peer."""
    retransmits, probes, last_ack_ms = _FIELDS.unpack(info)
    attempts: int = max(retransmits, probes)
    return attempts >= _ATTEMPTS and last_ack_ms >= SILENCE_MS
