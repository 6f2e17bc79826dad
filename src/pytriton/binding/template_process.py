# SPDX-License-Identifier: Apache-2.0
"""The process that forks others, which need not import what it has imported; see `template`.

It has no threads and no event loop, so that what it forks is as good as a process of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence

import msgspec

from pytriton.runtime.transport.link import RecordLink
from pytriton.runtime.transport.zygote import set_process_title

_STATUS_BYTES = 4


class ForkRequest(msgspec.Struct, array_like=True):
    """A process that should be forked.

    It comes with these descriptors: the folder that the process works in, the socket for its exit
    code, and those that it inherits. Names of files and values of variables need not be texts.
    """

    module: str
    function: str  # of this module; called without arguments
    argv: list[bytes]
    first_path: bytes  # the first folder in which the process looks for modules
    environment: dict[bytes, bytes]
    inherited: list[int]  # the numbers that its descriptors have in the process
    has_own_session: bool


class ForkAnswer(msgspec.Struct, array_like=True):
    """The answer, with a descriptor for the process (`pidfd_open`); 0: it could not be forked."""

    pid: int


def request_link(control: socket.socket) -> RecordLink[ForkRequest | ForkAnswer]:
    """Returns the template's end of the socket."""
    return RecordLink(control, msgspec.msgpack.Decoder(ForkRequest))


def answer_link(control: socket.socket) -> RecordLink[ForkRequest | ForkAnswer]:
    """Returns the other end."""
    return RecordLink(control, msgspec.msgpack.Decoder(ForkAnswer))


def exit_code_of(status: bytes) -> int | None:
    """Returns the exit code that a template has sent; None if it ended before that."""
    return int.from_bytes(status, "big", signed=True) if len(status) == _STATUS_BYTES else None


def main() -> None:
    """Import modules, and fork processes until the other end of the socket is closed.

    The arguments are the number of the socket and the names of the modules. In a forked process,
    this returns when the process has done its work.
    """
    descriptor, *modules = sys.argv[1:]
    # A terminal sends SIGINT to the whole process group; the parent decides when to stop.
    on_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(int(descriptor), False)
    for name in modules:
        importlib.import_module(name)
    set_process_title("pytriton template of servers")
    # Modules are no garbage, and a collector that visits them would copy their pages in each fork.
    gc.freeze()
    template = _Template(socket.socket(fileno=int(descriptor)))
    request = template.serve()
    signal.signal(signal.SIGINT, on_interrupt)
    template.enter(request)
    gc.enable()  # it is off while a process imports its modules
    getattr(importlib.import_module(request.module), request.function)()


class _Template:
    """Forks processes, and tells their exit codes."""

    def __init__(self, control: socket.socket) -> None:
        self._link = request_link(control)
        self._running: dict[int, tuple[int, int]] = {}  # by pidfd: pid, and the socket for its end
        self._ended: dict[int, int] = {}  # by these sockets: those whose end was told
        self._descriptors: list[int] = []

    def serve(self) -> ForkRequest:
        """Returns the request in each process that is forked; ends the template at its end."""
        events = select.poll()
        events.register(self._link, select.POLLIN)
        while True:
            for ready, _ in events.poll():
                if ready in self._running:
                    events.unregister(ready)
                    events.register(self._tell_end(ready), select.POLLIN)
                    continue
                if ready in self._ended:
                    events.unregister(ready)
                    os.waitpid(self._ended.pop(ready), 0)
                    os.close(ready)
                    continue
                try:
                    request = self._link.receive()
                except (EOFError, OSError):
                    os._exit(0)
                assert isinstance(request, ForkRequest)
                self._descriptors = self._link.take_descriptors(2 + len(request.inherited))
                if (process := self._fork()) is None:
                    return request
                if process:
                    events.register(process, select.POLLIN)

    def _fork(self) -> int | None:
        """Returns the pidfd of the process, 0 if there is none; None in the process itself."""
        folder, teller, *inherited = self._descriptors
        try:
            pid = os.fork()
        except OSError:  # the one who asks starts a process himself, and reports the error
            self._link.send(ForkAnswer(0))
            process = 0
            os.close(teller)
        else:
            if pid == 0:
                return None
            process = os.pidfd_open(pid)
            self._running[process] = (pid, teller)
            with contextlib.suppress(OSError):  # the next receipt tells that nobody listens
                self._link.send(ForkAnswer(pid), [process])
        for descriptor in (folder, *inherited):
            os.close(descriptor)
        return process

    def _tell_end(self, process: int) -> int:
        """Returns the socket; its other end is shut down when the process may be forgotten.

        Until then its id is not given to another process, as with every process that is started.
        """
        pid, teller = self._running.pop(process)
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert end is not None
        code = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
        with contextlib.suppress(OSError):  # nobody wants to know
            os.write(teller, code.to_bytes(_STATUS_BYTES, "big", signed=True))
        os.close(process)
        self._ended[teller] = pid
        return teller

    def enter(self, request: ForkRequest) -> None:
        """Make a forked process what it should be, with nothing of the template but its modules."""
        folder, teller, *inherited = self._descriptors
        self._link.close()
        for process, (_, other_teller) in self._running.items():
            os.close(process)
            os.close(other_teller)
        for descriptor in (teller, *self._ended):
            os.close(descriptor)
        if request.has_own_session:
            os.setsid()
        os.fchdir(folder)
        os.close(folder)
        _move_descriptors(inherited, request.inherited)
        sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())  # type: ignore[union-attr]
        os.environb.clear()
        os.environb.update(request.environment)
        sys.argv = [os.fsdecode(argument) for argument in request.argv]
        sys.path[0] = os.fsdecode(request.first_path)
        set_process_title(" ".join([sys.executable, "-m", request.module, *sys.argv[1:]]))


def _move_descriptors(descriptors: Sequence[int], numbers: Sequence[int]) -> None:
    """Give descriptors other numbers, whatever has those now; the process inherits them."""
    free = max((*numbers, *descriptors)) + 1
    for descriptor, number in [
        (fcntl.fcntl(each, fcntl.F_DUPFD, free), number)
        for each, number in zip(descriptors, numbers, strict=True)
    ]:
        os.dup2(descriptor, number)
        os.close(descriptor)
    for descriptor in set(descriptors) - set(numbers):
        os.close(descriptor)
