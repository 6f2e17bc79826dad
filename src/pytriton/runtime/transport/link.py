# SPDX-License-Identifier: Apache-2.0
"""Sends whole messages, with file descriptors, over a Unix socket. Does not interpret messages.

SOCK_SEQPACKET keeps message boundaries in the kernel. On systems without it, a stream with a
length before each message does the same.
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
import sys
import termios
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from pytriton.base.errors import descriptor_error
from pytriton.runtime.transport.memory import is_portable_forced
from pytriton.runtime.transport.peer_account import MAX_MESSAGE_BYTES, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.runtime.transport.peer_account import PeerAccount

# A packet of this size fits into the default send buffer of every Linux. One that is larger than
# the buffer can never be sent, so larger messages are sent in several: all but the last are full.
MAX_PACKET_BYTES = 128 << 10
MAX_DESCRIPTORS = 250  # per system call; Linux allows 253
_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)
_LENGTH = struct.Struct("<I")
_NO_BYTES = bytes(4)  # the answer of TIOCOUTQ if the peer has read everything
_TRUNCATED = int(socket.MSG_CTRUNC)  # the operators of an enum take 3 us
_MISSING = -1  # in place of the descriptors of one system call that there was no room for


Record = TypeVar("Record")
_encoder = msgspec.msgpack.Encoder()

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_sockets() -> None:
    for sock in list(_sockets):
        sock.close()


# A forked child must not act on its parent's connections: it would, for example, release an array
# that its parent still uses, or keep a connection open that its parent has closed.
os.register_at_fork(after_in_child=_close_sockets)


def close_in_forked_children(sock: socket.socket) -> None:
    """Close a socket in processes that this one forks."""
    _sockets.add(sock)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Returns two connected sockets of the best available kind; forked children close them."""
    if hasattr(socket, "SOCK_SEQPACKET") and not is_portable_forced():
        try:
            return _pair(socket.SOCK_SEQPACKET)
        except OSError:  # macOS defines the constant but not the socket
            pass
    return stream_pair()


def stream_pair() -> tuple[socket.socket, socket.socket]:
    """Returns two connected stream sockets; forked children close them."""
    return _pair(socket.SOCK_STREAM)


def _pair(kind: socket.SocketKind) -> tuple[socket.socket, socket.socket]:
    pair = socket.socketpair(socket.AF_UNIX, kind)
    _sockets.update(pair)
    return pair


class Link:
    """One end of a socket pair that carries messages.

    On a blocking socket `send` and `receive` wait. On a non-blocking one `send` queues the data
    that does not fit (call `flush` when the socket is writable), and `receive` returns None if
    there is no message.

    It promises that messages arrive whole and in order, each with its descriptors, or the
    connection ends. It does not look into messages, has no lock (one thread sends, one receives),
    and leaves descriptors that it sends open here.

    With an `account`, the peer may be broken: what is held for it is counted there, and
    ProtocolError is raised if that becomes too much.
    """

    def __init__(self, sock: socket.socket, account: PeerAccount | None = None) -> None:
        close_in_forked_children(sock)
        self._account = account
        self.socket = sock
        self._scratch = bytearray(MAX_PACKET_BYTES)
        self._scratch_view = memoryview(self._scratch)
        self._unsent: deque[tuple[memoryview, Sequence[int]]] = deque()
        self.descriptors: list[int] = []  # that were received, and not taken
        self._received = bytearray()  # of a message whose rest is still to come

    @property
    def has_unsent(self) -> bool:
        """Whether there is queued data for `flush`."""
        return bool(self._unsent)

    @property
    def has_message(self) -> bool:
        """Whether a message is buffered already, so that polling the socket does not report it."""
        return False

    @property
    def has_read_ahead(self) -> bool:
        """Whether a part of the next message, perhaps with its descriptors, was read already."""
        return False

    @property
    def has_failed(self) -> bool:
        """Whether the connection was reset, which is told once; of packets `receive` tells it."""
        return False

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> bool:
        """Send one message, after those that are still queued; returns whether any data is.

        Nothing may follow the end of a message, so one that fills its last packet is extended by a
        byte, which no receiver reads.
        """
        if len(message) >= MAX_PACKET_BYTES:
            return self._send_packets(message, descriptors)
        if not self._unsent and not descriptors:
            # Nearly always all data fits; not queueing it saves a microsecond.
            try:
                sent = self.socket.send(message)
            except BlockingIOError:
                sent = 0
            if sent == len(message):
                return False
            self._queue(memoryview(message)[sent:], ())
        else:
            self._queue(memoryview(message), descriptors)
        return self.flush()

    def _queue(self, data: memoryview, descriptors: Sequence[int]) -> None:
        """Queue data; raises ProtocolError if the peer has left too much unread."""
        if self._account is not None:
            self._account.add_unread(len(data))
        self._unsent.append((data, descriptors))

    def _send_packets(self, message: bytes, descriptors: Sequence[int]) -> bool:
        if len(message) % MAX_PACKET_BYTES == 0:
            message += b"\0"
        data = memoryview(message)
        while len(data) > MAX_PACKET_BYTES:
            self._queue(data[:MAX_PACKET_BYTES], ())
            data = data[MAX_PACKET_BYTES:]
        self._queue(data, descriptors)
        return self.flush()

    def check_integrity(self) -> None:
        """Raise AssertionError if the queue is not as `flush` needs it. Changes nothing.

        Queued data is never empty, as an empty packet would be taken for the end, and has at most
        as many descriptors as one system call passes. A closed link holds nothing.
        """
        for data, descriptors in self._unsent:
            assert len(data), "an empty packet is queued"
            assert len(descriptors) <= MAX_DESCRIPTORS, f"{len(descriptors)} descriptors are queued"
        if self.socket.fileno() < 0:
            assert not self._unsent, f"{len(self._unsent)} packets are queued on a closed link"
            assert not self.descriptors, f"a closed link has the descriptors {self.descriptors}"

    def flush(self) -> bool:
        """Send queued data, as much as the socket accepts; returns whether any is left."""
        unsent = self._unsent
        while unsent:
            data, descriptors = unsent[0]
            try:
                sent = self._send(data, descriptors)
            except BlockingIOError:
                return True
            if self._account is not None:
                self._account.unread_bytes -= sent
            if sent == len(data):
                unsent.popleft()
            else:
                # Only a stream sends a part. The descriptors go with its first byte.
                unsent[0] = (data[sent:], ())
        return False

    def receive(self, flags: int = 0) -> bytearray | None:
        """Returns the next message; it is empty at the end of the connection.

        None if there is none and the socket does not block, or `flags` has MSG_DONTWAIT.
        """
        while (size := self._read_into(self._scratch, flags)) == MAX_PACKET_BYTES:
            self._collect(self._scratch_view)
        if size < 0:
            return None
        if not self._received:
            return self._scratch[:size]
        message, self._received = self._received, bytearray()
        if self._account is not None:
            self._account.partial_bytes -= len(message)
        if not size:  # the peer ended within a message, which is lost with it
            return bytearray()
        message += self._scratch_view[:size]
        return message

    def _collect(self, data: memoryview) -> None:
        """Add to a message whose rest is still to come."""
        self._received += data
        if self._account is not None:
            self._account.add_partial(len(data), len(self._received))

    def take_descriptors(self, count: int) -> list[int]:
        """Returns file descriptors from the received messages, in order; the caller owns them.

        The caller takes all descriptors of a message at once.

        Raises:
            UnavailableError: This process had no room for some of them. The others are closed.
        """
        taken: list[int] = []
        is_complete = True
        for at in range(0, count, MAX_DESCRIPTORS):  # those that were sent together
            part = self.descriptors[: min(count - at, MAX_DESCRIPTORS)]
            if _MISSING in part:
                is_complete = False
                del part[part.index(_MISSING) + 1 :]
            del self.descriptors[: len(part)]
            taken += part
        if not is_complete:
            _close_descriptors(taken)
            raise descriptor_error()
        return taken

    @property
    def has_unread(self) -> bool:
        """Whether the peer has not read everything yet; False where the system does not tell."""
        if self._unsent:
            return True
        if not sys.platform.startswith("linux"):
            return False
        try:
            answer: bytes = fcntl.ioctl(self.socket.fileno(), termios.TIOCOUTQ, _NO_BYTES)
        except OSError:  # the socket is closed
            return False
        return answer != _NO_BYTES

    def close(self) -> None:
        """Close the socket; drops queued data and closes descriptors that were not taken."""
        if self._account is not None:
            self._account.unread_bytes -= sum(len(data) for data, _ in self._unsent)
            self._account.partial_bytes -= len(self._received)
        self._unsent.clear()
        self._received = bytearray()
        self._scratch = bytearray()  # frees it, as it is large and this object may be kept longer
        self._scratch_view = memoryview(self._scratch)
        self.socket.close()
        _close_descriptors(self.descriptors)
        self.descriptors.clear()

    def _send(self, data: memoryview, descriptors: Sequence[int]) -> int:
        if not descriptors:
            return self.socket.send(data)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        return self.socket.sendmsg([data], ancillary)

    def _read_into(self, buffer: bytearray, flags: int) -> int:
        """Returns the number of bytes read; 0 at the end of the connection, -1 if none came."""
        try:
            size, ancillary, told, _ = self.socket.recvmsg_into([buffer], _ANCILLARY_BYTES, flags)
        except BlockingIOError:
            return -1
        except ConnectionResetError:
            return 0
        for _, _, data in ancillary:
            received = array.array("i")
            # As `socket.recv_fds` does: a truncated control message may end within a number.
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
            self.descriptors.extend(received)
            if self._account is not None and len(self.descriptors) > MAX_DESCRIPTORS:
                raise ProtocolError(
                    f"expected at most {MAX_DESCRIPTORS} file descriptors with a message, got "
                    f"{len(self.descriptors)}"
                )
        if told & _TRUNCATED:
            # The kernel has closed the rest. The mark keeps the descriptors of later messages apart
            # from those of this one, and makes this message fail rather than the connection.
            self.descriptors.append(_MISSING)
        return size


def _close_descriptors(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        if descriptor != _MISSING:
            os.close(descriptor)


class StreamLink(Link):
    """Messages over SOCK_STREAM, each after its length."""

    def __init__(
        self,
        sock: socket.socket,
        limit_bytes: int = 2**32 - 1,
        account: PeerAccount | None = None,
    ) -> None:
        super().__init__(sock, account)
        self._limit_bytes = limit_bytes

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> bool:
        """See `Link.send`; there is no limit on the number of descriptors."""
        data = memoryview(_LENGTH.pack(len(message)) + message)
        # Each call that passes descriptors needs a byte of its own: the first ones of the length.
        while len(descriptors) > MAX_DESCRIPTORS:
            self._queue(data[:1], descriptors[:MAX_DESCRIPTORS])
            data, descriptors = data[1:], descriptors[MAX_DESCRIPTORS:]
        self._queue(data, descriptors)
        return self.flush()

    @property
    def has_message(self) -> bool:
        """See `Link.has_message`."""
        received = self._received
        if len(received) < 4:
            return False
        length: int = _LENGTH.unpack_from(received)[0]
        # Before the bytes are read: a broken peer must not make this process collect gigabytes.
        if length > self._limit_bytes:
            raise ProtocolError(
                f"expected a message of at most {self._limit_bytes} bytes, got one of {length}"
            )
        return len(received) >= 4 + length

    @property
    def has_read_ahead(self) -> bool:
        """See `Link.has_read_ahead`; one read of a stream may return several messages."""
        return bool(self._received)

    @property
    def has_failed(self) -> bool:
        """See `Link.has_failed`; a stream has it read only after what was received."""
        return self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0

    def receive(self, flags: int = 0) -> bytearray | None:
        """See `Link.receive`."""
        received = self._received
        while not self.has_message:
            size = self._read_into(self._scratch, flags)
            if size < 0:
                return None
            if size == 0:
                return bytearray()
            self._collect(self._scratch_view[:size])
        end = 4 + _LENGTH.unpack_from(received)[0]
        message = received[4:end]
        del received[:end]
        if self._account is not None:
            self._account.partial_bytes -= end
        return message


class RecordLink(Generic[Record]):
    """Records of msgspec over a stream socket. EOFError means that the peer closed the connection.

    `decoder` is for the records that the peer may send, which have at most `limit_bytes`.
    """

    def __init__(
        self,
        sock: socket.socket,
        decoder: msgspec.msgpack.Decoder[Any],
        limit_bytes: int = 2**32 - 1,
    ) -> None:
        self.socket = sock
        self._link = StreamLink(sock, limit_bytes)
        self._decode = decoder.decode
        self.take_descriptors = self._link.take_descriptors  # those of the last record
        self.close = self._link.close

    def fileno(self) -> int:
        """Returns the socket's file descriptor."""
        return self.socket.fileno()

    @property
    def has_message(self) -> bool:
        """See `Link.has_message`."""
        return self._link.has_message

    def send(self, record: Record, descriptors: Sequence[int] = ()) -> bool:
        """Send a record; returns whether a non-blocking socket has queued data for `flush`."""
        return self._link.send(_encoder.encode(record), descriptors)

    def flush(self) -> bool:
        """Send queued data; returns whether all of it was sent."""
        return not self._link.flush()

    def receive(self) -> Record | None:
        """Returns the next record; None if a non-blocking socket has none.

        Raises:
            EOFError: The peer closed the connection.
            ValueError: The received data is not a valid record.
        """
        message = self._link.receive()
        if message is None:
            return None
        if not message:
            raise EOFError
        try:
            record: Record = self._decode(message)
        except RecursionError:
            raise ValueError("expected a record, got one that is nested too deeply") from None
        return record


def make_link(sock: socket.socket, account: PeerAccount | None = None) -> Link:
    """Returns a link for the kind of the socket."""
    kind = sock.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)
    if kind != socket.SOCK_STREAM:
        return Link(sock, account)
    if account is None:
        return StreamLink(sock)
    # What comes after a message may be read with it.
    return StreamLink(sock, MAX_MESSAGE_BYTES - MAX_PACKET_BYTES - _LENGTH.size, account)
