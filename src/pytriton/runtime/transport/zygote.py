# SPDX-License-Identifier: Apache-2.0
"""A process that has all modules imported and forks others in milliseconds, and its messages.

It has no threads, because a fork copies only the thread that forks. It notifies the server when a
forked process ends. When the server closes its end of the socket, which the zygote inherits, the
zygote kills all processes that it forked and exits.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import select
import signal
import socket
import sys
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from pytriton.base.errors import UnavailableError
from pytriton.runtime.transport.link import RecordLink

if TYPE_CHECKING:
    from types import FrameType


class ForkWorker(msgspec.Struct, tag="fork", array_like=True):
    """Server to zygote: fork a worker. The message comes with its channel and its fork socket."""

    call: int
    title: str  # of the process
    environment: dict[str, str] = {}  # variables to set


class Forked(msgspec.Struct, tag="forked", array_like=True):
    """Zygote to server: the worker was forked, or the reason why not."""

    call: int
    pid: int  # 0: no worker was forked
    error_number: int = 0  # the reason, as a value of `errno`


class Exited(msgspec.Struct, tag="exited", array_like=True):
    """Zygote to server: a worker ended; the status is that of `os.waitpid`."""

    pid: int
    status: int


ZygoteMessage = ForkWorker | Forked | Exited

_decoder = msgspec.msgpack.Decoder(ZygoteMessage)


class ZygoteLink(RecordLink[ZygoteMessage]):
    """Either end of the zygote's socket."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, _decoder)


def set_process_title(title: str) -> None:
    """Show a title in lists of processes, if the optional package for that is installed."""
    try:
        setproctitle = importlib.import_module("setproctitle")
    except ImportError:
        return
    setproctitle.setproctitle(title)


class Fork(NamedTuple):
    """The arguments of a forked worker."""

    channel_descriptor: int
    fork_descriptor: int
    title: str
    environment: dict[str, str]


class ForkServer:
    """Forks on request. In the forked process, `serve` returns the worker's arguments."""

    def __init__(self, link: ZygoteLink) -> None:
        self._link = link
        self._workers: set[int] = set()
        self._wakeup_reader, self._wakeup_writer = socket.socketpair()
        for end in (self._wakeup_reader, self._wakeup_writer):
            end.setblocking(False)

    def serve(self) -> Fork | None:
        """Fork on request; returns None when the server ended, a `Fork` in a forked process."""
        # A signal between the look at the children and the sleep would be missed. Its byte in the
        # socket is not: poll returns at once.
        signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _on_sigchld)
        poll = select.poll()
        poll.register(self._link.fileno(), select.POLLIN)
        poll.register(self._wakeup_reader.fileno(), select.POLLIN)
        try:
            while True:
                ready = {descriptor for descriptor, _ in poll.poll()}
                if self._wakeup_reader.fileno() in ready:
                    self._reap()
                if self._link.fileno() in ready and (fork := self._handle_requests()) is not None:
                    return fork
        # Without its socket in order, it could not tell anybody about its workers.
        except (EOFError, BrokenPipeError, ConnectionResetError, ValueError):
            self._kill()
            return None

    def _handle_requests(self) -> Fork | None:
        while True:
            message = self._link.receive()
            if not isinstance(message, ForkWorker):
                raise ValueError(f"expected a request to fork, got {type(message).__name__}")  # noqa: TRY004  as for other invalid messages
            if (fork := self._fork(message)) is not None:
                return fork
            if not self._link.has_message:  # poll does not report what was read from the socket
                return None

    def _fork(self, message: ForkWorker) -> Fork | None:
        try:
            channel, fork_socket = self._link.take_descriptors(2)
        except UnavailableError:
            self._link.send(Forked(message.call, 0, errno.EMFILE))
            return None
        fork = Fork(channel, fork_socket, message.title, message.environment)
        sys.stdout.flush()  # or the child would write the same text again
        try:
            pid = self.fork_process(fork)
        except OSError as error:
            self._link.send(Forked(message.call, 0, error.errno or 0))
            pid = -1
        if pid == 0:
            self._become_worker()
            return fork
        # The worker's ends must be open in the worker only: their end tells that it has ended.
        os.close(channel)
        os.close(fork_socket)
        if pid > 0:
            self._workers.add(pid)
            # Here and in the child: whoever comes first, the group is there before it is killed.
            with contextlib.suppress(OSError):  # the child has done it, or has ended
                os.setpgid(pid, pid)
            self._link.send(Forked(message.call, pid))
        return None

    def fork_process(self, fork: Fork) -> int:
        """Fork, as `os.fork`; a simulated process has no copy, and is started with `fork`."""
        return os.fork()

    def _become_worker(self) -> None:
        # In its own process group, so that processes which the model starts are killed with it.
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)  # the socket is shared: a model's signals would wake the zygote
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._wakeup_reader.close()
        self._wakeup_writer.close()
        self._link.close()

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wakeup_reader.recv(4096):
                pass
        # Signals of the same kind are merged, so one may stand for several children. WNOWAIT leaves
        # each a zombie, whose pid nobody else gets.
        while self._workers:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            self._reap_one(ended.si_pid)

    def _reap_one(self, pid: int) -> None:
        # Kill the group before the pid can be reused: the worker may have started processes.
        if pid in self._workers:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if pid in self._workers:
            self._workers.discard(pid)
            self._link.send(Exited(pid, status))

    def _kill(self) -> None:
        """Kill all workers; reports this if the server only closed its sending side."""
        for pid in list(self._workers):
            with contextlib.suppress(OSError):
                self._reap_one(pid)


def _on_sigchld(number: int, frame: FrameType | None) -> None:
    """Do nothing: Python writes to the wakeup descriptor only for signals with a handler."""
