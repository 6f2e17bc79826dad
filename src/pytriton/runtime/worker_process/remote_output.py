# SPDX-License-Identifier: Apache-2.0
"""Sends what a worker on another machine has printed to the server's log.

Its parent reads its output and returns the lines over a pipe; see `executor/remote`. So also those
of C code and of programs that the model starts are there, and a crash loses none of them.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

from pytriton.runtime.python_backend.output import LabelledStream
from pytriton.runtime.transport.frames import LogLine

if TYPE_CHECKING:
    from pytriton.runtime.transport.channel import Channel

_READ_BYTES = 64 << 10
# A longer line becomes several. As text it may take three times as much, and a message that is too
# long for the socket would be written to shared memory, which only the model's threads allocate.
_LINE_BYTES = 16 << 10


class RemoteOutput:
    """Reads the pipe on a thread of its own, until the pipe or the connection ends.

    If the server is slow, this waits, the pipe gets full, and the parent leaves lines out.

    Args:
        pipe: The descriptor of the pipe.
        channel: The channel to the server.
        name: The name of the instance, which the lines have in place of a file.
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
        part = b""
        with contextlib.suppress(OSError):  # the connection is lost, and the process ends
            while data := os.read(self._pipe, _READ_BYTES):
                *lines, part = (part + data).split(b"\n")
                for line in lines:
                    self._send(line)
                if len(part) > _READ_BYTES:
                    self._send(part)
                    part = b""

    def _send(self, line: bytes) -> None:
        # A bar of progress is written over and over; the last of it is what one would see.
        shown = line.rstrip(b"\r").rpartition(b"\r")[2]
        for start in range(0, len(shown), _LINE_BYTES):
            text = shown[start : start + _LINE_BYTES].decode(errors="replace")
            if text.strip():
                self._channel.send(LogLine("INFO", text, self._name, 0))

    def __repr__(self) -> str:
        return f"<RemoteOutput of {self._name}>"
