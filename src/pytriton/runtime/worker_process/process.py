# SPDX-License-Identifier: Apache-2.0
"""Prepares a worker process, forked or spawned, and runs its model."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytriton.base.lazy_module import LazyModule
from pytriton.base.package import command_of_worker
from pytriton.base.request_ids import add_to_log_records
from pytriton.runtime.backend.connection import ServerConnection
from pytriton.runtime.backend.worker import Worker
from pytriton.runtime.cuda import registration
from pytriton.runtime.python_backend.model_backend import ModelBackend
from pytriton.runtime.python_backend.output import (
    end_output,
    end_printed_lines,
    label_output,
    send_printed_lines,
)
from pytriton.runtime.transport.arena import Arena
from pytriton.runtime.transport.frames import Initialize, Initialized, WorkerLogLine
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.zygote import set_process_title

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

    from pytriton.base.log_lines import SentLines
    from pytriton.runtime.native_backend import worker as native_worker
    from pytriton.runtime.transport.channel import Channel
    from pytriton.runtime.transport.zygote import Fork
    from pytriton.runtime.worker_process import function_worker
else:  # they are a quarter of a zygote's imports, and most servers never use them
    function_worker = LazyModule("pytriton.runtime.worker_process.function_worker")
    native_worker = LazyModule("pytriton.runtime.native_backend.worker")

_IGNORED = (signal.SIGINT, signal.SIGTERM)
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_SERVER_GONE = 1  # exit status


def run_worker(
    channel_descriptor: int,
    fork_descriptor: int,
    title: str,
    environment: Mapping[str, str],
    refusal: str = "",
) -> None:
    """Make this process a worker, and run its model until the server ends it.

    With a refusal, which says why nothing of the model may run here, it only tells that.
    """
    for descriptor in (channel_descriptor, fork_descriptor):
        os.set_inheritable(descriptor, False)
    prepare(title, environment)
    channel = MemoryChannel(socket.socket(fileno=channel_descriptor), Arena())
    serve(channel, socket.socket(fileno=fork_descriptor), refusal=refusal)


def execute_worker(fork: Fork) -> str:
    """Replace this process, which is in its sandbox, by a worker of another Python.

    Returns only if that is not possible, with the reason.
    """
    os.environ.update(fork.environment)
    os.environ.pop("PYTHONHOME", None)  # it is for the server's own Python
    channel, fork_socket = fork.channel_descriptor, fork.fork_descriptor
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    connection = ["--channel-fd", str(channel), "--fork-fd", str(fork_socket)]
    command = command_of_worker(
        fork.interpreter, fork.title, connection, fork.fallback_paths, version
    )
    for descriptor in (channel, fork_socket):
        os.set_inheritable(descriptor, True)
    try:
        os.execv(fork.interpreter, command)  # noqa: S606  no shell is wanted
    except OSError as error:
        return f"The Python '{fork.interpreter}' cannot be executed in its sandbox: {error}"


def prepare(title: str, environment: Mapping[str, str]) -> None:
    """Make this process a worker, which ends with its parent and ignores signals."""
    _die_with_parent()
    _ignore_signals()
    os.environ.update(environment)
    _seed_numpy()
    set_process_title(title)
    # As in Triton. With our arguments, models that parse them, like `unittest.main`, would exit.
    sys.argv = [""]
    label_output()
    add_to_log_records()


def _seed_numpy() -> None:
    """Seed the state that models share, which all forks have otherwise in common.

    Where no module has imported `numpy.random` yet, it is seeded when a model does. To import it
    here would take a third of a worker's start and 4 MiB of each worker.
    """
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()


def serve(
    channel: Channel,
    fork_socket: socket.socket | None,
    status_if_lost: int = _SERVER_GONE,
    refusal: str = "",
) -> None:
    """Run the model that the server names over this channel, until the server ends it."""
    registration.install()
    connection = ServerConnection.of_worker(channel)
    try:
        _run_model(connection, fork_socket, refusal)
    except (EOFError, BrokenPipeError, ConnectionResetError, TimeoutError):
        # Without a server the model's work is of no use, so the process ends at once.
        os._exit(status_if_lost)
    connection.close()
    if fork_socket is not None:
        fork_socket.close()
    end_output()


def _run_model(
    connection: ServerConnection, fork_socket: socket.socket | None, refusal: str
) -> None:
    frame = connection.next_job().frame
    assert isinstance(frame, Initialize), f"expected Initialize first, got {frame}"
    if refusal:
        connection.outbox.send(lambda _: Initialized(error=refusal))
        return
    if frame.polling_cores > 1:
        connection.mailbox.poll_for_jobs(frame.polling_cores)
    if frame.log.is_kept and frame.function is None:  # functions elsewhere return all they print
        name = frame.arguments.get("model_name", "")
        send_printed_lines(name, functools.partial(_send_printed, connection))
    make_worker(frame, connection, fork_socket).run(frame)
    end_printed_lines()


def _send_printed(connection: ServerConnection, sent: SentLines) -> None:
    """Send what this process has printed."""
    outbox = connection.outbox
    if sent.lost_count:
        text = f"{sent.lost_count} printed lines were lost here"
        outbox.post(WorkerLogLine("WARNING", text, "stdout", 0, is_printed=True))
    for line in sent.lines:
        outbox.post(
            WorkerLogLine(
                "INFO",
                line.message,
                line.place,
                0,
                line.request_ids,
                line.model,
                is_printed=True,
                process=sent.process,
                created=line.created,
            )
        )


def make_worker(
    frame: Initialize, connection: ServerConnection, fork_socket: socket.socket | None
) -> Worker:
    """Returns what runs a model of any kind."""
    if frame.function is not None:
        return function_worker.FunctionWorker(connection)
    make = native_worker.NativeBackend if frame.is_library else ModelBackend
    backend = make(connection, fork_socket, frame)
    return Worker(backend, backend.runtime, connection)


def _ignore_signals() -> None:
    """Ignore signals that reach a whole terminal or container: the server decides when to end.

    Processes that the model forks, for example those of a pool, are ended by these signals as
    usual. That includes a signal that arrives before they have restored the default.
    """
    # An empty handler, not SIG_IGN, because programs that the model starts would inherit SIG_IGN.
    for number in _IGNORED:
        signal.signal(number, _do_nothing)
    block = functools.partial(signal.pthread_sigmask, signal.SIG_BLOCK, _IGNORED)
    unblock = functools.partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, _IGNORED)
    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=_restore_signals)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Ignore a signal."""


def _restore_signals() -> None:
    for number in _IGNORED:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED)


def _die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, even during a model's long call."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # it ended before the call of prctl
        os._exit(1)


def remove_first_path() -> None:
    """Remove the first entry of `sys.path`, which is only there to find this package.

    For models the package is at the end of the path, and the working directory is not in it.
    """
    holder = Path(__file__).resolve().parents[3]
    if sys.path[0] in ("", str(Path.cwd()), str(holder)):
        del sys.path[0]
