# SPDX-License-Identifier: Apache-2.0
"""A process that has the models of one state of the code, for `pytriton serve --reload`.

It reports on a socket whether the models are served, and ends when that is closed.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
from typing import Any

import msgspec

from pytriton.base.announcement import Addresses
from pytriton.tools.commands.serve.loading import ServeError, load, users_traceback, watched_files
from pytriton.tools.commands.serve.options import ServeOptions
from pytriton.tools.commands.serve.servers import CommandBinder

_END_TIMEOUT_S = 1.0  # for what Python does at the end of a process


class CodeReport(msgspec.Struct):
    """The result of loading one state of the code.

    Args:
        files: files to watch.
        error: why it is not served; empty if it is.
        models: names of the models.
        lines: the announcement.
        skipped: what is not served, with the reason.
    """

    files: list[str]
    error: str = ""
    models: list[str] = []
    lines: list[str] = []
    skipped: list[str] = []


def main(arguments: list[str]) -> None:
    """Serve until the socket is closed, whose descriptor is the argument.

    The parent has sent a line of JSON on it that says what to serve and where.
    """
    (descriptor,) = arguments
    _leave_signals_to_parent()
    # Python takes a compiled file for that of a source which is saved again in the same second.
    sys.dont_write_bytecode = True
    with socket.socket(fileno=int(descriptor)) as parent:
        with parent.makefile("rb") as sent:
            document = json.loads(sent.readline())
        _serve(parent, document)
        # Threads that the user's code has left would otherwise keep this process for ever.
        deadline = threading.Timer(_END_TIMEOUT_S, os._exit, (0,))
        deadline.daemon = True
        deadline.start()


def _leave_signals_to_parent() -> None:
    """Let signals for all processes of a terminal or a service pass: the parent ends this one.

    Processes that the user's code starts have the usual handlers.
    """
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: None) for number in signals}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    os.register_at_fork(after_in_child=restore)


def _serve(parent: socket.socket, document: dict[str, Any]) -> None:
    options = ServeOptions.from_json(document["options"])
    # The server ends first, and that is no error here.
    logging.getLogger("pytriton.binding.remote_triton").setLevel(logging.CRITICAL)
    binder = CommandBinder(Addresses(*document["addresses"]))
    try:
        loaded = load(options, binder)
        binder.connect()
    except Exception as error:  # noqa: BLE001  the parent shows it
        text = str(error) if isinstance(error, ServeError) else users_traceback(error)
        _send(parent, CodeReport(watched_files(options), error=text))
        return
    lines = binder.announcement(colours=document["colours"], end=document["end"])
    _send(parent, CodeReport(watched_files(options), "", loaded.names, lines, loaded.skipped))
    parent.recv(1)  # ends when the parent closes its side, or itself ends
    binder.stop()


def _send(parent: socket.socket, report: CodeReport) -> None:
    parent.sendall(msgspec.json.encode(report) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
