# SPDX-License-Identifier: Apache-2.0
"""A process that has everything imported and forks workers in milliseconds.

It has no threads, so a fork of it is a whole process. It tells the server when a worker ends, and
when the server goes, it kills them all.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import select
import signal
import socket
import sys
from typing import TYPE_CHECKING, NamedTuple

# Imported for those that are forked.
import triton_python_backend_utils  # noqa: F401

from pytriton.python_backend.process import forget_first_path, run_worker
from pytriton.python_backend.zygote_messages import Exited, Forked, ForkWorker, ZygoteLink

if TYPE_CHECKING:
    from types import FrameType


class Fork(NamedTuple):
    """What a forked process is to do."""

    channel_descriptor: int
    fork_descriptor: int
    title: str
    environment: dict[str, str]


class Zygote:
    """Forks on request. `serve` returns in the forked process with what is to be run there."""

    def __init__(self, link: ZygoteLink) -> None:
        self._link = link
        self._workers: set[int] = set()
        self._wakeup, self._alarm = socket.socketpair()
        for end in (self._wakeup, self._alarm):
            end.setblocking(False)

    def serve(self) -> Fork | None:
        """Work until the server is gone, None, or until this is a forked process."""
        signal.set_wakeup_fd(self._alarm.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _note_end)
        poll = select.poll()
        poll.register(self._link.fileno(), select.POLLIN)
        poll.register(self._wakeup.fileno(), select.POLLIN)
        try:
            while True:
                ready = {descriptor for descriptor, _ in poll.poll()}
                if self._wakeup.fileno() in ready:
                    self._reap()
                if self._link.fileno() in ready and (fork := self._take()) is not None:
                    return fork
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._kill()
            return None

    def _take(self) -> Fork | None:
        while True:
            message = self._link.receive()
            assert isinstance(message, ForkWorker)
            if (fork := self._fork(message)) is not None:
                return fork
            if not self._link.has_message:
                return None

    def _fork(self, message: ForkWorker) -> Fork | None:
        channel, fork_socket = self._link.take_descriptors(2)
        sys.stdout.flush()
        try:
            pid = os.fork()
        except OSError as error:
            self._link.send(Forked(message.call, 0, f"no process could be forked: {error}"))
            pid = -1
        if pid == 0:
            self._become_worker()
            return Fork(channel, fork_socket, message.title, message.environment)
        os.close(channel)
        os.close(fork_socket)
        if pid > 0:
            self._workers.add(pid)
            with contextlib.suppress(OSError):  # it was quicker, or is gone already
                os.setpgid(pid, pid)
            self._link.send(Forked(message.call, pid))
        return None

    def _become_worker(self) -> None:
        # A group of its own: what a model starts goes with it.
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._wakeup.close()
        self._alarm.close()
        self._link.close()

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wakeup.recv(4096):
                pass
        while self._workers:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            self._bury(ended.si_pid)

    def _bury(self, pid: int) -> None:
        # Before its number is free again: processes that it started may be left.
        if pid in self._workers:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if pid in self._workers:
            self._workers.discard(pid)
            self._link.send(Exited(pid, status))

    def _kill(self) -> None:
        """End what is left; a server that only stopped to speak hears of it."""
        for pid in list(self._workers):
            with contextlib.suppress(OSError):
                self._bury(pid)


def _note_end(number: int, frame: FrameType | None) -> None:
    """A child ended, as the wakeup descriptor says; signals that are ignored do not write to it."""


def main(arguments: list[str] | None = None) -> None:
    """Serve the socket with the inherited descriptor `--control-fd`."""
    parser = argparse.ArgumentParser(prog="python -m pytriton.python_backend.zygote")
    parser.add_argument("--control-fd", type=int, required=True, metavar="N")
    options = parser.parse_args(arguments)
    forget_first_path()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.set_inheritable(options.control_fd, False)
    # What is there now is never garbage, and looking at it would copy its pages in every fork.
    gc.collect()
    gc.freeze()
    fork = Zygote(ZygoteLink(socket.socket(fileno=options.control_fd))).serve()
    if fork is not None:
        run_worker(*fork)


if __name__ == "__main__":
    main()
