# SPDX-License-Identifier: Apache-2.0
"""Forks workers, whose modules it has imported; see `pytriton.runtime.transport.zygote`."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING

# Imported for the forked processes.
import triton_python_backend_utils  # noqa: F401

from pytriton.base.lazy_module import LazyModule
from pytriton.runtime.transport.zygote import ForkServer, ZygoteLink, set_process_title
from pytriton.runtime.worker_process.process import (
    execute_worker,
    remove_first_path,
    run_worker,
)

if TYPE_CHECKING:
    import argparse

    from pytriton.base.sandbox import SandboxPolicy
    from pytriton.runtime.sandbox import enclosure
    from pytriton.runtime.transport.zygote import WorkerEnclosure
else:  # one that is forked off the server has no arguments, and no workers in sandboxes
    argparse = LazyModule("argparse")
    enclosure = LazyModule("pytriton.runtime.sandbox.enclosure")


def main(arguments: list[str] | None = None) -> None:
    """Serve the socket with the inherited descriptor `--control-fd`."""
    parser = argparse.ArgumentParser(prog="python -m pytriton.runtime.worker_process.zygote")
    parser.add_argument("--control-fd", type=int, required=True, metavar="N")
    parser.add_argument("--preload", action="append", default=[], metavar="MODULE")
    options = parser.parse_args(arguments)
    remove_first_path()
    os.set_inheritable(options.control_fd, False)
    for name in options.preload:
        with contextlib.suppress(Exception):  # the worker imports it again, and reports the error
            importlib.import_module(name)
    _serve(socket.socket(fileno=options.control_fd))


def run_in_fork(control: socket.socket) -> None:
    """Serve a socket in a process that was forked off the server, as one that was started for it.

    The process takes over nothing of the server but its modules and its output.
    """
    _ignore_signals()
    os.closerange(3, control.fileno())
    os.closerange(control.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    remove_first_path()
    if sys.path[0] == str(Path(sys.argv[0]).resolve().parent):
        del sys.path[0]  # the folder of the command
    # Processes that a model starts with multiprocessing would otherwise import the server.
    sys.modules["__main__"] = types.ModuleType("__main__")
    _serve(control)


def _serve(control: socket.socket) -> None:
    """Fork workers; in a forked process, this returns when the worker's model has ended."""
    _ignore_signals()
    set_process_title("pytriton zygote of workers")
    # Existing objects are never garbage, and a collector that visits them would copy their pages
    # here and in every fork.
    gc.freeze()
    gc.enable()  # it is off while a process imports its modules
    fork = ForkServer(ZygoteLink(control), _enclose).serve()
    if fork is None:
        os._exit(0)  # to take the modules apart would only take time
    descriptors = (fork.channel_descriptor, fork.fork_descriptor)
    refusal = "" if fork.enclosure is None else fork.enclosure.enter(descriptors)
    if fork.interpreter and not refusal:
        refusal = execute_worker(fork)
    run_worker(*descriptors, fork.title, fork.environment, refusal)


def _enclose(policy: SandboxPolicy) -> WorkerEnclosure:
    return enclosure.Enclosure(policy)


def _ignore_signals() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


if __name__ == "__main__":
    main()
