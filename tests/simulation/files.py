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
_MICROSECOND_NS = 1000


def system_error(number: int) -> OSError:
    """Returns the exception of a system call that failed."""
    return OSError(number, os.strerror(number))


class File:
    """An open file; it is closed with its last reference: a descriptor, or a message under way."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.references = 0
        self.is_blocking = True
        self.watchers: list[Callable[[File], None]] = []  # called when it may be ready

    def release(self) -> None:
        """Drop a reference."""
        self.references -= 1
        if self.references == 0:
            self.on_closed()

    def on_closed(self) -> None:
        """Called when nothing refers to it any more."""

    @property
    def is_readable(self) -> bool:
        """Whether a read would not wait."""
        return False

    @property
    def is_writable(self) -> bool:
        """Whether a write would not wait."""
        return True

    @property
    def is_hung_up(self) -> bool:
        """Whether the other end is gone."""
        return False

    def changed(self) -> None:
        """Tell those that watch it."""
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
    """Bytes under way, with files."""

    __slots__ = ("data", "files")

    def __init__(self, data: bytes, files: tuple[File, ...] = ()) -> None:
        self.data = data
        self.files = files
        for file in files:
            file.references += 1


class SocketFile(File):
    """One end of a connection between two processes, or of a client to the server."""

    kind = "stream"
    latency_ns = 3 * _MICROSECOND_NS
    jitter_ns = 20 * _MICROSECOND_NS

    def __init__(self, machine: Machine, name: str) -> None:
        super().__init__(machine)
        self.name = name
        self.random = machine.random_of(name)
        self.peer: SocketFile | None = None
        self.capacity = STREAM_BYTES
        self.inbox: deque[Message] = deque()
        self.inbox_bytes = 0  # with those on their way to it
        self.saw_end = False  # the peer has shut down its sending side
        self.is_shut = False  # this side has
        self.is_reset = False
        self.offset = 0  # of the first message that was not read
        self._arrival_ns = 0  # of the last message that was sent: none overtakes another

    # The other end

    @property
    def is_readable(self) -> bool:
        return bool(self.inbox) or self.saw_end or self.is_reset or self.peer is None

    @property
    def is_writable(self) -> bool:
        peer = self.peer
        return peer is None or self.is_reset or peer.inbox_bytes < peer.capacity

    @property
    def is_hung_up(self) -> bool:
        return self.peer is None or self.is_reset

    @property
    def unread_bytes(self) -> int:
        """What was sent and the peer has not read."""
        return 0 if self.peer is None else self.peer.inbox_bytes

    def send(self, data: bytes, files: tuple[File, ...] = ()) -> int:
        """Send what fits; returns its size.

        Raises:
            BlockingIOError: Nothing fits now.
            OSError: The connection has ended.
        """
        peer = self.peer
        if self.is_reset:
            self.is_reset = False
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        if peer is None or self.is_shut or peer.references == 0:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        size = self._fitting(len(data), peer)
        if not size:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        message = Message(bytes(data[:size]), files)
        peer.inbox_bytes += size
        self._transmit(peer._arrive, message)
        return size

    def _fitting(self, size: int, peer: SocketFile) -> int:
        return min(size, max(0, peer.capacity - peer.inbox_bytes))

    def send_now(self, data: bytes) -> None:
        """Deliver bytes at once, if there is room: what a signal handler of the system does."""
        if self.peer is not None and self.is_writable:
            self.peer.inbox_bytes += len(data)
            self.peer._arrive(Message(data))

    def _transmit(self, arrive: Callable[..., None], *arguments: object) -> None:
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
        self.saw_end = True
        if with_reset:
            self.is_reset = True
        self.peer = None
        self.changed()

    def receive(self, size: int) -> tuple[bytes, tuple[File, ...]]:
        """Returns bytes that have arrived, and the files of the first of them; empty at the end.

        The caller takes over the references to files.

        Raises:
            BlockingIOError: There are none now.
            ConnectionResetError: The connection was reset.
        """
        if self.is_reset:
            self.is_reset = False
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        if not self.inbox:
            if self.saw_end or self.peer is None:
                return b"", ()
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return self._take(size)

    def _take(self, size: int) -> tuple[bytes, tuple[File, ...]]:
        taken, files = [], ()
        inbox = self.inbox
        while inbox and size:
            message = inbox[0]
            if message.files and (taken or files):
                break  # descriptors come with the first byte of their message
            data = message.data
            part = data if len(data) <= size else data[:size]
            taken.append(part)
            files, message.files = files or message.files, ()
            size -= len(part)
            if len(part) == len(data):
                inbox.popleft()
            else:
                message.data = data[len(part) :]
            if files:
                break
        read = taken[0] if len(taken) == 1 else b"".join(taken)
        self._on_read(len(read))
        return read, files

    def _on_read(self, size: int) -> None:
        peer = self.peer
        was_full = self.inbox_bytes >= self.capacity
        self.inbox_bytes -= size
        if was_full and peer is not None:
            peer.changed()

    def shut_down(self) -> None:
        """Send no more; the peer reads the end after what was sent."""
        if not self.is_shut and self.peer is not None:
            self.is_shut = True
            self._transmit(self.peer._on_peer_shut)

    def reset(self) -> None:
        """End the connection at once, for both sides."""
        peer, self.peer = self.peer, None
        if peer is not None:
            peer._drop_inbox()
            peer._on_peer_closed(with_reset=True)

    def on_closed(self) -> None:
        self.watchers.clear()
        peer, self.peer = self.peer, None
        has_unread = bool(self.inbox)
        self._drop_inbox()
        if peer is not None:
            # Linux resets a connection whose last data was not read.
            self.peer_closing(peer, with_reset=has_unread)

    def peer_closing(self, peer: SocketFile, *, with_reset: bool) -> None:
        """Tell the other end, after what was sent before."""
        self._transmit(lambda: peer._on_peer_closed(with_reset=with_reset))

    def _drop_inbox(self) -> None:
        while self.inbox:
            _drop(self.inbox.popleft())

    def __repr__(self) -> str:
        return f"<SocketFile {self.name} inbox={self.inbox_bytes}>"


class PacketFile(SocketFile):
    """An end of a SOCK_SEQPACKET pair: what is sent in one call is received in one call."""

    kind = "packet"

    def _fitting(self, size: int, peer: SocketFile) -> int:
        if size > peer.capacity:
            raise system_error(errno.EMSGSIZE)
        return size if peer.inbox_bytes + size <= peer.capacity or not peer.inbox_bytes else 0

    @property
    def is_writable(self) -> bool:
        # As in Linux: while at most half of the buffer is in use.
        peer = self.peer
        return peer is None or self.is_reset or peer.inbox_bytes * 2 <= peer.capacity

    def _take(self, size: int) -> tuple[bytes, tuple[File, ...]]:
        message = self.inbox.popleft()
        self._on_read(len(message.data))
        return message.data[:size], message.files

    def _on_read(self, size: int) -> None:
        was_writable = self.inbox_bytes * 2 <= self.capacity
        self.inbox_bytes -= size
        peer = self.peer
        if peer is not None and not was_writable and self.inbox_bytes * 2 <= self.capacity:
            peer.changed()


def _drop(message: Message) -> None:
    for file in message.files:
        file.release()
    message.files = ()


def connect(
    machine: Machine, first: SocketFile, second: SocketFile
) -> tuple[SocketFile, SocketFile]:
    """Connect two ends."""
    first.peer, second.peer = second, first
    return first, second


class ListenerFile(File):
    """A listening socket; connections wait in its queue."""

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

    def on_closed(self) -> None:
        if self.machine.__dict__.get("listeners", {}).get(self.address[1]) is self:
            del self.machine.listeners[self.address[1]]
        while self.waiting:
            self.waiting.popleft().reset()


class MemoryFile(File):
    """Shared memory; all that map it have views of the same bytes."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.data = bytearray()
        self.seals = 0

    def resize(self, size: int) -> None:
        """Set its size.

        Raises:
            OSError: The machine has no memory left.
        """
        machine = self.machine
        if machine.shared_memory_bytes + size - len(self.data) > machine.shared_memory_limit:
            raise system_error(errno.ENOMEM)
        machine.shared_memory_bytes += size - len(self.data)
        self.data = bytearray(size)

    def on_closed(self) -> None:
        self.machine.shared_memory_bytes -= len(self.data)


class ProcessFile(File):
    """What `os.pidfd_open` returns a descriptor of."""

    def __init__(self, machine: Machine, process: SimulatedProcess) -> None:
        super().__init__(machine)
        self.process = process
        process.exit_watchers.append(self.changed)

    @property
    def is_readable(self) -> bool:
        return self.process.is_over

    def on_closed(self) -> None:
        if self.changed in self.process.exit_watchers:
            self.process.exit_watchers.remove(self.changed)


def open_in(process: SimulatedProcess, files: tuple[Any, ...]) -> tuple[list[int], bool]:
    """Open received files in a process; returns their descriptors, and whether some had no room."""
    descriptors: list[int] = []
    is_truncated = False
    for file in files:
        if not is_truncated:
            try:
                descriptors.append(process.open(file))
            except OSError:
                is_truncated = True
        file.release()
    return descriptors, is_truncated
