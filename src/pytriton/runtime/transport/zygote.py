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
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from pytriton.base.errors import UnavailableError
from pytriton.base.sandbox import SandboxPolicy
from pytriton.runtime.transport.link import RecordLink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType


class ForkWorker(msgspec.Struct, tag="fork", array_like=True):
    """Server to zygote: fork a worker. The message comes with its channel and its fork socket."""

    call: int
    title: str  # of the process
    environment: dict[str, str] = {}  # variables to set
    sandbox: SandboxPolicy | None = None  # None: it has no sandbox
    # Another Python that the worker executes when it is in its sandbox, and where that finds our
    # packages.
    interpreter: str = ""
    fallback_paths: list[str] = []


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


class WorkerEnclosure(Protocol):
    """The sandbox of a worker, before and after the fork; see `pytriton.runtime.sandbox`."""

    @property
    def outputs(self) -> Sequence[int]:
        """The descriptors to read what the worker prints."""

    def open(self) -> None:
        """Make what the worker needs; raises OSError."""

    def on_forked(self) -> None:
        """Close what only the worker needs."""

    def enter(self, kept: Sequence[int]) -> str:
        """Confine the worker, in the worker; returns why that is not possible, or ""."""

    def forward(self, descriptor: int) -> bool:
        """Print what the worker has printed; returns False when nothing more will come."""

    def close(self) -> int | None:
        """Remove all of it after the worker has ended; returns the process that still does."""


class Fork(NamedTuple):
    """The arguments of a forked worker."""

    channel_descriptor: int
    fork_descriptor: int
    title: str
    environment: dict[str, str]
    enclosure: WorkerEnclosure | None = None
    interpreter: str = ""
    fallback_paths: Sequence[str] = ()


class ForkServer:
    """Forks on request. In the forked process, `serve` returns the worker's arguments.

    `enclose` makes the sandboxes of workers that are to have one.
    """

    def __init__(
        self, link: ZygoteLink, enclose: Callable[[SandboxPolicy], WorkerEnclosure] | None = None
    ) -> None:
        self._link = link
        self._enclose = enclose
        self._workers: set[int] = set()
        self._enclosures: dict[int, WorkerEnclosure] = {}  # by worker
        self._outputs: dict[int, WorkerEnclosure] = {}  # by the descriptor that is read
        self._has_enclosed = False
        self._removers: set[int] = set()  # processes that remove scratch folders
        self._poll = select.poll()
        self._wakeup_reader, self._wakeup_writer = socket.socketpair()
        for end in (self._wakeup_reader, self._wakeup_writer):
            end.setblocking(False)

    def serve(self) -> Fork | None:
        """Fork on request; returns None when the server ended, a `Fork` in a forked process."""
        # A signal between the look at the children and the sleep would be missed. Its byte in the
        # socket is not: poll returns at once.
        signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _on_sigchld)
        poll = self._poll
        poll.register(self._link.fileno(), select.POLLIN)
        poll.register(self._wakeup_reader.fileno(), select.POLLIN)
        try:
            while True:
                ready = {descriptor for descriptor, _ in poll.poll()}
                self._forward(ready)
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
        sys.stdout.flush()  # or the child would write the same text again
        enclosure = None
        try:
            enclosure = self._opened(message)
            fork = Fork(
                channel,
                fork_socket,
                message.title,
                message.environment,
                enclosure,
                message.interpreter,
                message.fallback_paths,
            )
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
        if enclosure is not None:
            enclosure.on_forked()
        if pid > 0:
            self._workers.add(pid)
            # Here and in the child: whoever comes first, the group is there before it is killed.
            with contextlib.suppress(OSError):  # the child has done it, or has ended
                os.setpgid(pid, pid)
            if enclosure is not None:
                self._keep(pid, enclosure)
            self._link.send(Forked(message.call, pid))
        elif enclosure is not None:
            self._remove(enclosure)
        return None

    # Sandboxes

    def _opened(self, message: ForkWorker) -> WorkerEnclosure | None:
        if message.sandbox is None:
            return None
        if self._enclose is None:
            raise ValueError("expected a process without a sandbox, as this one forks no others")
        enclosure = self._enclose(message.sandbox)
        enclosure.open()
        self._has_enclosed = True
        return enclosure

    def _keep(self, pid: int, enclosure: WorkerEnclosure) -> None:
        self._enclosures[pid] = enclosure
        for descriptor in enclosure.outputs:
            self._outputs[descriptor] = enclosure
            self._poll.register(descriptor, select.POLLIN)

    def _forward(self, ready: set[int]) -> None:
        for descriptor in sorted(ready & self._outputs.keys()):
            if not self._outputs[descriptor].forward(descriptor):
                self._poll.unregister(descriptor)
                del self._outputs[descriptor]

    def _remove(self, enclosure: WorkerEnclosure) -> None:
        for descriptor in enclosure.outputs:
            if self._outputs.pop(descriptor, None) is not None:
                self._poll.unregister(descriptor)
        remover = enclosure.close()
        if remover is not None:
            self._removers.add(remover)

    def _kill_orphans(self) -> None:
        """Kill processes of ended workers that have left the group of their worker.

        Workers in sandboxes adopt them while they run, and this process does after that. Those of
        such a process come here when it has ended, and are found then.
        """
        pid = os.getpid()
        try:
            with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:  # noqa: PTH123  once for each end of a process
                children = {int(child) for child in file.read().split()}
        except OSError:  # a kernel without that file
            return
        for child in sorted(children - self._workers - self._removers):
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)

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
        while self._workers or self._has_enclosed:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:  # there are none, not even orphans
                return
            if ended is None:
                break
            self._reap_one(ended.si_pid)
        if self._has_enclosed:
            self._kill_orphans()

    def _reap_one(self, pid: int) -> None:
        # Kill the group before the pid can be reused: the worker may have started processes.
        if pid in self._workers:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        self._removers.discard(pid)
        if pid in self._workers:
            self._workers.discard(pid)
            if (enclosure := self._enclosures.pop(pid, None)) is not None:
                self._remove(enclosure)
            self._link.send(Exited(pid, status))

    def _kill(self) -> None:
        """Kill all workers; reports this if the server only closed its sending side."""
        for pid in list(self._workers):
            with contextlib.suppress(OSError):
                self._reap_one(pid)
        if self._has_enclosed:
            self._kill_orphans()


def _on_sigchld(number: int, frame: FrameType | None) -> None:
    """Do nothing: Python writes to the wakeup descriptor only for signals with a handler."""
