# SPDX-License-Identifier: Apache-2.0
"""Runs a worker that connects to a server, which may be on another machine.

It ends at once when its connection ends, or the process that started it. This parent reads its
output and returns the lines over a pipe, and the worker sends them to the server's log. So also
those of C code and of programs that the model starts are there, and a crash loses none of them.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytriton.runtime.python_backend.output import LabelledStream
from pytriton.runtime.transport.arena import Arena
from pytriton.runtime.transport.frames import WorkerLogLine
from pytriton.runtime.transport.handshake import ClientHandshake, HandshakeError
from pytriton.runtime.transport.lines import LineCutter
from pytriton.runtime.transport.link import close_in_forked_children
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.rendezvous import (
    CONNECTION_LOST,
    TOKEN_VARIABLE,
    connect_to_address,
)
from pytriton.runtime.transport.stream_channel import (
    CHECK_INTERVAL_S,
    StreamChannel,
    is_peer_gone,
    tune_stream,
)
from pytriton.runtime.worker_process.process import prepare, serve

if TYPE_CHECKING:
    from pytriton.runtime.transport.channel import Channel

_READ_BYTES = 64 << 10
# A longer line becomes several. As text it may take three times as much, and a message that is too
# long for the socket would be written to shared memory, which only the model's threads allocate.
_LINE_BYTES = 16 << 10
_TIMEOUT_S = 60.0  # for each step of the connection


class RemoteOutput:
    """Reads the pipe on a thread of its own, until the pipe or the connection ends.

    If the server is slow, this waits, the pipe gets full, and the parent leaves lines out. Lines
    have the name of the instance in place of a file.
    """

    def __init__(self, pipe: int, channel: Channel, name: str) -> None:
        self._pipe = pipe
        self._channel = channel
        self._name = name

    def start(self) -> None:
        """Begin to read."""
        LabelledStream.is_returned = True
        threading.Thread(target=self._run, name="pytriton-output", daemon=True).start()

    def _run(self) -> None:
        cutter = LineCutter(_READ_BYTES)
        with contextlib.suppress(OSError):  # the connection is lost, and the process ends
            while data := os.read(self._pipe, _READ_BYTES):
                for line in cutter.cut(data):
                    self._send(line)

    def _send(self, line: bytes) -> None:
        # A bar of progress is written over and over; the last of it is what one would see.
        shown = line.rstrip(b"\r").rpartition(b"\r")[2]
        for start in range(0, len(shown), _LINE_BYTES):
            text = shown[start : start + _LINE_BYTES].decode(errors="replace")
            if text.strip():
                self._channel.send(WorkerLogLine("INFO", text, self._name, 0))

    def __repr__(self) -> str:
        return f"<RemoteOutput of {self._name}>"


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """The addresses of the server, and the identity of this worker."""

    addresses: tuple[str, ...]  # tried in turn
    start: str  # the name of the start of which this is a process
    node_id: str  # the node that it runs on
    rank: int  # its place in a group
    title: str  # shown in process lists
    version: str | None  # the version of pytriton; None: that of the installed package

    @property
    def instance_name(self) -> str:
        """The name of the instance, with the rank if it is not 0."""
        name = self.start.rpartition("-")[0] or self.start
        return f"{name} (rank {self.rank})" if self.rank else name


@dataclass(frozen=True, slots=True)
class Admitted:
    """The sockets of a worker that the server wants."""

    sock: socket.socket
    fork_socket: socket.socket | None

    def open_channel(self) -> Channel:
        """Returns the channel: with shared memory on the server's own machine."""
        if self.fork_socket is None:
            return StreamChannel(self.sock)
        return MemoryChannel(self.sock, Arena())


def run_remote_worker(options: RemoteOptions) -> None:
    """Connect to the server, and run its model until the server ends it."""
    token = os.environ.pop(TOKEN_VARIABLE, "")
    if not token:
        sys.exit(f"expected the token of '{options.start}' in the variable {TOKEN_VARIABLE}")
    prepare(options.title, {})
    admitted = _connect_to_any(options, token)
    starter = _take_stdin()
    _end_with(admitted.sock, starter)
    channel = admitted.open_channel()
    if starter is not None:
        RemoteOutput(starter, channel, options.instance_name).start()
    serve(channel, admitted.fork_socket, status_if_lost=CONNECTION_LOST)


def _connect_to_any(options: RemoteOptions, token: str) -> Admitted:
    problems = []
    for address in options.addresses:
        handshake = ClientHandshake(
            token,
            start=options.start,
            node_id=options.node_id,
            pid=os.getpid(),
            rank=options.rank,
            version=options.version,
        )
        try:
            return _connect_to(address, handshake)
        except (OSError, EOFError, ValueError, HandshakeError) as error:
            problems.append(f"{address}: {error or type(error).__name__}")
    sys.exit(f"'{options.start}' cannot connect to the server. {'; '.join(problems)}")


def _connect_to(address: str, handshake: ClientHandshake) -> Admitted:
    sock = connect_to_address(address, _TIMEOUT_S)
    try:
        tune_stream(sock)
        _shake_hands(sock, handshake)
        if sock.family == socket.AF_UNIX:
            with sock:
                return _receive_sockets(sock)
        sock.settimeout(None)
    except BaseException:
        sock.close()
        raise
    return Admitted(sock, None)


def _shake_hands(sock: socket.socket, handshake: ClientHandshake) -> None:
    while not handshake.is_welcome:
        data = sock.recv(handshake.wanted_bytes)
        if not data:
            raise EOFError("the connection was closed")
        if answer := handshake.feed(data):
            sock.sendall(answer)


def _receive_sockets(sock: socket.socket) -> Admitted:
    """Receive the sockets that a worker on the server's own machine has."""
    _, descriptors, _, _ = socket.recv_fds(sock, 1, 2)
    if len(descriptors) != 2:
        raise EOFError("the server has passed no sockets")
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    channel, fork_socket = (socket.socket(fileno=descriptor) for descriptor in descriptors)
    return Admitted(channel, fork_socket)


def _end_with(sock: socket.socket, starter: int | None) -> None:
    """End this process when the connection ends, or what has started it.

    A thread waits for that: the model's thread does not read while it runs a batch. It has a
    descriptor of its own, so that the connection lasts until this process has ended. Otherwise it
    would take the close of the connection, after `finalize`, for its loss, and leave no time for
    functions of `atexit`.
    """
    watched = sock.dup()
    close_in_forked_children(watched)
    poll = select.poll()
    # Ends are always reported; this name is for one that leaves the other direction open.
    poll.register(watched.fileno(), getattr(select, "POLLRDHUP", 0))
    if starter is not None:
        poll.register(starter, 0)

    # The processes of one machine end together, whatever happens to it.
    interval_ms = None if sock.family == socket.AF_UNIX else CHECK_INTERVAL_S * 1000

    def wait() -> None:
        while not poll.poll(interval_ms) and not is_peer_gone(watched):
            pass
        os._exit(CONNECTION_LOST)

    threading.Thread(target=wait, name="pytriton-connection", daemon=True).start()


def _take_stdin() -> int | None:
    """Returns a descriptor of the pipe to the process that has started this one, if there is one.

    The model gets an empty standard input in its place.
    """
    try:
        if not stat.S_ISFIFO(os.fstat(0).st_mode):
            return None
    except OSError:  # it is closed
        return None
    pipe = os.dup(0)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return pipe
