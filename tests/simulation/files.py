# SPDX-License-Identifier: Apache-2.0
"""What descriptors of the simulated machine refer to: sockets, shared memory, processes.

Sockets keep the promises of Linux: bytes of a stream arrive in order, packets arrive whole, a
buffer that is full makes the sender wait, descriptors travel with messages and are lost if the
receiver has no room for them.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulation.machine import Machine, SimulatedProcess

STREAM_BYTES = 212_992  # the usual size of a buffer
_MESSAGE_BYTES = 767  # what Linux needs for a small message, beside its bytes
_PIECE_BYTES = 32 << 10  # of a stream: a piece that is not larger is not cut
_MICROSECOND_NS = 1000
F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW = 1, 2, 4


def system_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class File:
    """An open file; it is closed with its last reference: a descriptor, or a message under way."""

    is_reset = False  # an error is to be reported, once

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.references = 0
        self.is_blocking = True
        self.watchers: list[Callable[[File], None]] = []  # called when it may be ready

    def release(self) -> None:
        self.references -= 1
        if self.references == 0:
            self.on_closed()

    def on_closed(self) -> None:
        """Called when nothing refers to it any more."""

    @property
    def is_readable(self) -> bool:
        return False

    @property
    def is_writable(self) -> bool:
        return True

    @property
    def is_hung_up(self) -> bool:
        return False

    def changed(self) -> None:
        for watcher in self.watchers:
            watcher(self)

    def wait(self, is_ready: Callable[[], bool], deadline_ns: int | None = None) -> bool:
        """Let the current thread wait for a condition; returns False at the deadline."""
        machine, thread = self.machine, self.machine.current

        def wake(_: File) -> None:
            machine.wake(thread)

        self.watchers.append(wake)
        try:
            while not is_ready():
                if deadline_ns is not None and machine.now_ns >= deadline_ns:
                    return False
                machine.wait(deadline_ns)
        finally:
            if wake in self.watchers:  # not if the file was closed meanwhile
                self.watchers.remove(wake)
        return True


class Message:
    """Bytes under way, with files; `charge` is what they take of the sender's buffer."""

    __slots__ = ("charge", "data", "files")

    def __init__(self, data: bytes, files: tuple[File, ...] = (), charge: int = 0) -> None:
        self.data = data
        self.files = files
        self.charge = charge
        for file in files:
            file.references += 1


class SocketFile(File):
    """One end of a pair of Unix stream sockets.

    As in Linux, what is sent is in the peer's queue when the call returns. The buffer is that of
    the sender: a message is charged until it was read, with what the kernel needs for it. A call
    may send while the buffer is not full, but poll reports room only if it is mostly empty.
    """

    kind = "stream"
    latency_ns = 0
    jitter_ns = 0
    overhead_bytes = _MESSAGE_BYTES
    writable_share = 0.25  # of the buffer that may be in use if poll reports room

    def __init__(self, machine: Machine, name: str) -> None:
        super().__init__(machine)
        self.name = name
        self.random = machine.random_of(name)
        self.peer: SocketFile | None = None
        self.capacity = STREAM_BYTES  # of the buffer of what is sent to this end
        self.inbox: deque[Message] = deque()
        self.inbox_bytes = 0  # the charges of the inbox, and of messages on their way to it
        self.saw_end = False  # nothing more comes
        self.is_shut = False  # nothing more can be sent
        self.is_reset = False
        self.is_cut = False  # the packet that was read last was longer than the reader's buffer
        self._arrival_ns = 0  # of the last message that was sent: none overtakes another

    # The other end

    @property
    def is_readable(self) -> bool:
        return bool(self.inbox) or self.saw_end or self.is_reset

    @property
    def is_writable(self) -> bool:
        peer = self.peer
        return (
            peer is None or self.is_shut or peer.inbox_bytes <= peer.capacity * self.writable_share
        )

    @property
    def is_hung_up(self) -> bool:
        return self.saw_end and self.is_shut

    @property
    def unread_bytes(self) -> int:
        """What was sent and the peer has not read, with what the kernel needs for it."""
        return 0 if self.peer is None else self.peer.inbox_bytes

    def send(self, data: bytes, files: tuple[File, ...] = ()) -> int:
        """Send what fits; returns its size.

        Raises:
            BlockingIOError: Nothing fits now.
            OSError: The connection has ended.
        """
        peer = self.peer
        if peer is None or self.is_shut:
            return self._send_to_none(data)
        size = self._fitting(len(data), peer)
        if size <= 0:
            if size < 0:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            if self.kind == "stream":  # where nothing is no message
                return 0
        charge = size + self.overhead_bytes
        message = Message(bytes(data[:size]), files, charge)
        peer.inbox_bytes += charge
        if self.latency_ns:
            self._transmit(peer._arrive, message)
        else:
            peer._arrive(message)
        return size

    def _send_to_none(self, data: bytes) -> int:
        """Send after the connection has ended."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def _raise_reset(self) -> None:
        if self.is_reset:
            self.is_reset = False
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))

    def _fitting(self, size: int, peer: SocketFile) -> int:
        """Returns how many bytes can be sent; -1 if the sender has to wait."""
        room = peer.capacity - peer.inbox_bytes
        if room <= 0:
            return -1
        return min(size, max(room, _PIECE_BYTES))

    def send_now(self, data: bytes) -> None:
        """Deliver bytes at once, if there is room: what a signal handler of the system does."""
        peer = self.peer
        if peer is not None and not self.is_shut and self._fitting(len(data), peer) > 0:
            charge = len(data) + self.overhead_bytes
            peer.inbox_bytes += charge
            peer._arrive(Message(data, (), charge))

    def _transmit(self, arrive: Callable[..., None], *arguments: object) -> None:
        if not self.latency_ns:
            arrive(*arguments)
            return
        machine = self.machine
        delay_ns = self.latency_ns + int(self.random.random() * self.jitter_ns)
        self._arrival_ns = max(self._arrival_ns, machine.now_ns + delay_ns)
        machine.call_at(self._arrival_ns, arrive, *arguments)

    def _arrive(self, message: Message) -> None:
        if self.references == 0 or self.is_reset:
            _drop(message)
            return
        self.inbox.append(message)
        self.changed()

    def _on_peer_shut(self) -> None:
        self.saw_end = True
        self.changed()

    def _on_peer_closed(self, *, with_reset: bool) -> None:
        if self.references == 0:
            return
        self.saw_end = self.is_shut = True
        self.is_reset = with_reset
        self.peer = None
        self.changed()

    def receive(self, size: int) -> tuple[bytes, tuple[File, ...]]:
        """Returns bytes that have arrived, and the files of the first of them; empty at the end.

        The caller takes over the references to files.

        Raises:
            BlockingIOError: There are none now.
            ConnectionResetError: The connection was reset, after what was received before.
        """
        if self.inbox:
            return self._take(size)
        self._raise_reset()
        if self.saw_end:
            return b"", ()
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def _take(self, size: int) -> tuple[bytes, tuple[File, ...]]:
        """Take bytes, up to the end of the first message with files, which come with its start."""
        inbox = self.inbox
        message = inbox[0]
        read = message.data
        if len(inbox) == 1 and len(read) <= size:
            inbox.clear()
            self._on_read(message.charge)
            return read, message.files
        taken: list[bytes] = []
        files: tuple[File, ...] = ()
        charges = 0
        while inbox and size and not files:
            message = inbox[0]
            files, message.files = message.files, ()
            data = message.data
            if len(data) > size:
                taken.append(data[:size])
                message.data = data[size:]
                break
            taken.append(data)
            size -= len(data)
            charges += message.charge
            inbox.popleft()
        self._on_read(charges)
        return taken[0] if len(taken) == 1 else b"".join(taken), files

    def _on_read(self, charge: int) -> None:
        before = self.inbox_bytes
        self.inbox_bytes = after = before - charge
        peer = self.peer
        if peer is not None:
            writable_bytes = self.capacity * self.writable_share
            if after <= writable_bytes < before:
                peer.changed()

    def shut_down(self) -> None:
        """Send no more; the peer reads the end after what was sent."""
        if not self.is_shut and self.peer is not None:
            self.is_shut = True
            self._transmit(self.peer._on_peer_shut)
            self.changed()

    def stop_receiving(self) -> None:
        if not self.saw_end:
            self.saw_end = True
            if self.peer is not None:
                self.peer.is_shut = True
                self.peer.changed()
            self.changed()

    def check_connected(self) -> None:
        """Raise OSError if the system does not allow to shut it down."""

    def reset(self) -> None:
        peer, self.peer = self.peer, None
        self.saw_end = self.is_shut = True
        if peer is not None:
            self._transmit(_tell_closed, peer, True)

    def on_closed(self) -> None:
        self.watchers.clear()
        peer, self.peer = self.peer, None
        has_unread = bool(self.inbox)
        self._drop_inbox()
        if peer is not None:
            # Linux resets a connection whose last data was not read.
            self.peer_closing(peer, with_reset=has_unread)

    def peer_closing(self, peer: SocketFile, *, with_reset: bool) -> None:
        self._transmit(_tell_closed, peer, with_reset)

    def _drop_inbox(self) -> None:
        while self.inbox:
            _drop(self.inbox.popleft())

    def __repr__(self) -> str:
        return f"<SocketFile {self.name} inbox={self.inbox_bytes}>"


def _tell_closed(end: SocketFile, with_reset: bool) -> None:
    end._on_peer_closed(with_reset=with_reset)


class PacketFile(SocketFile):
    """An end of a SOCK_SEQPACKET pair: what is sent in one call is received in one call."""

    kind = "packet"

    def _send_to_none(self, data: bytes) -> int:
        self._raise_reset()
        return super()._send_to_none(data)

    def _fitting(self, size: int, peer: SocketFile) -> int:
        if size > peer.capacity - 32:
            raise system_error(errno.EMSGSIZE)
        return size if peer.inbox_bytes < peer.capacity else -1

    def receive(self, size: int) -> tuple[bytes, tuple[File, ...]]:
        # Other than for a stream, the error comes before packets that were received.
        if self.is_reset:
            self._raise_reset()
        return super().receive(size)

    def _take(self, size: int) -> tuple[bytes, tuple[File, ...]]:
        message = self.inbox.popleft()
        self._on_read(message.charge)
        data = message.data
        self.is_cut = len(data) > size
        return data[:size] if self.is_cut else data, message.files


class TcpFile(SocketFile):
    """One end of a TCP connection: what is sent arrives later.

    The end that closes does not wait for the other, which may send once more: it hears later that
    nobody received it.
    """

    latency_ns = 20 * _MICROSECOND_NS
    jitter_ns = 60 * _MICROSECOND_NS
    overhead_bytes = 0
    writable_share = 2 / 3

    def _fitting(self, size: int, peer: SocketFile) -> int:
        room = peer.capacity - peer.inbox_bytes
        return min(size, room) if room > 0 else -1

    def send(self, data: bytes, files: tuple[File, ...] = ()) -> int:
        peer = self.peer
        if peer is not None and peer.references == 0 and not self.is_shut:
            self.machine.call_later(2 * self.latency_ns, self._on_refused)
            return len(data)
        return SocketFile.send(self, data, files)

    def _send_to_none(self, data: bytes) -> int:
        self._raise_reset()
        if self.is_shut:
            return super()._send_to_none(data)
        self.machine.call_later(2 * self.latency_ns, self._on_refused)
        return len(data)

    def _on_refused(self) -> None:
        """Hear that the peer, which had closed, did not receive what was sent."""
        self.saw_end = self.is_shut = True
        self.peer = None
        self.changed()

    def _on_peer_closed(self, *, with_reset: bool) -> None:
        if self.references == 0:
            return
        self.saw_end = True
        self.is_shut |= with_reset
        self.is_reset = with_reset
        self.peer = None
        self.changed()

    def peer_closing(self, peer: SocketFile, *, with_reset: bool) -> None:
        super().peer_closing(peer, with_reset=with_reset)
        if self.inbox_bytes and not with_reset:  # of messages that arrive too late
            peer.machine.call_at(self._arrival_ns + self.latency_ns, peer._on_refused)

    def stop_receiving(self) -> None:
        self.saw_end = True  # TCP does not tell the peer
        self.changed()

    def check_connected(self) -> None:
        if self.is_shut and self.saw_end:
            raise system_error(errno.ENOTCONN)


def _drop(message: Message) -> None:
    for file in message.files:
        file.release()
    message.files = ()


def connect(
    machine: Machine, first: SocketFile, second: SocketFile
) -> tuple[SocketFile, SocketFile]:
    first.peer, second.peer = second, first
    return first, second


class ListenerFile(File):
    kind = "listener"

    def __init__(self, machine: Machine, name: str) -> None:
        super().__init__(machine)
        self.name = name
        self.address: tuple[str, int] = ("0.0.0.0", 0)
        self.backlog = 0
        self.waiting: deque[SocketFile] = deque()

    @property
    def is_readable(self) -> bool:
        return bool(self.waiting)

    @property
    def is_writable(self) -> bool:
        return False

    def on_closed(self) -> None:
        if self.machine.__dict__.get("listeners", {}).get(self.address[1]) is self:
            del self.machine.listeners[self.address[1]]
        while self.waiting:
            self.waiting.popleft().reset()


class MemoryFile(File):
    def __init__(self, machine: Machine, seals: int = 0) -> None:
        super().__init__(machine)
        self.data = bytearray()
        self.seals = seals

    @property
    def is_readable(self) -> bool:
        return True

    def resize(self, size: int) -> None:
        """Set its size.

        Raises:
            OSError: The machine has no memory left, or the size is sealed.
        """
        machine, more = self.machine, size - len(self.data)
        if (more < 0 and self.seals & _F_SEAL_SHRINK) or (more > 0 and self.seals & _F_SEAL_GROW):
            raise system_error(errno.EPERM)
        if machine.shared_memory_bytes + more > machine.shared_memory_limit:
            raise system_error(errno.ENOMEM)
        # A bytearray that is mapped raises BufferError: the simulation cannot resize that.
        if more < 0:
            del self.data[size:]
        else:
            self.data.extend(bytes(more))
        machine.shared_memory_bytes += more

    def add_seals(self, seals: int) -> None:
        if self.seals & F_SEAL_SEAL:
            raise system_error(errno.EPERM)
        self.seals |= seals

    def on_closed(self) -> None:
        self.machine.shared_memory_bytes -= len(self.data)


class NamedMemory(MemoryFile):
    """An object of shared memory that a client made; the machine's limit is not for it."""

    def __init__(self, machine: Machine, key: str, size: int) -> None:
        super().__init__(machine)
        if key in machine.named_memory:
            raise system_error(errno.EEXIST)
        self.key = key
        self.references = 1  # of the client
        self.data.extend(bytes(size))
        machine.named_memory[key] = self

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self.data[offset : offset + size])

    def write(self, offset: int, data: Any) -> None:
        if offset + len(data) > len(self.data):
            self.resize(offset + len(data))
        self.data[offset : offset + len(data)] = data

    def resize(self, size: int) -> None:
        self.data[size:] = bytes(max(0, size - len(self.data)))

    def unlink(self) -> None:
        del self.machine.named_memory[self.key]

    def on_closed(self) -> None:
        pass


class ProcessFile(File):
    def __init__(self, machine: Machine, process: SimulatedProcess) -> None:
        super().__init__(machine)
        self.process = process
        process.exit_watchers.append(self.changed)

    @property
    def is_readable(self) -> bool:
        return self.process.is_over

    @property
    def is_writable(self) -> bool:
        return False

    def on_closed(self) -> None:
        if self.changed in self.process.exit_watchers:
            self.process.exit_watchers.remove(self.changed)


def open_in(
    process: SimulatedProcess, files: tuple[Any, ...], limit: int
) -> tuple[list[int], bool]:
    """Open received files in a process; returns their descriptors, and whether some had no room."""
    descriptors: list[int] = []
    is_truncated = len(files) > limit
    for file in files[:limit]:
        try:
            descriptors.append(process.open(file))
        except OSError:  # noqa: PERF203  the rest is closed
            is_truncated = True
            break
    for file in files:
        file.release()
    return descriptors, is_truncated
