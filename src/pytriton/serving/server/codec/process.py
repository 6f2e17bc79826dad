# SPDX-License-Identifier: Apache-2.0
"""The server's side of one process that parses JSON."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from pytriton.base.package import IMPORT_FOLDER
from pytriton.serving.server.codec.messages import LENGTH, Job, Reply, decode_reply, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.base.dtypes import Buffer

# The directory of the package replaces the working directory at the start of sys.path: a user's
# file with the name of one of our modules must not be imported instead.
_BOOTSTRAP = (
    "import sys; sys.path[0] = sys.argv.pop(1); "
    "from pytriton.serving.server.codec.child import main; main()"
)
_PIPE_BYTES = 1 << 20


class CodecProcess:
    """Runs one job at a time. All methods block, but not other threads."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOTSTRAP, IMPORT_FOLDER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # each thread would take memory
        )
        assert isinstance(self._process.stdin, io.FileIO)
        assert isinstance(self._process.stdout, io.FileIO)
        for pipe in (self._process.stdin, self._process.stdout):
            _enlarge_pipe(pipe)
        self._jobs = self._process.stdin
        self._results = io.BufferedReader(self._process.stdout)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def run(self, job: Job, text: Buffer) -> Reply:
        """Run a job. The payload of the reply has to be read before the next job.

        Raises:
            EOFError: The process ended.
        """
        head = encode(job)
        try:
            for part in (LENGTH.pack(len(head)) + head, text):
                view = memoryview(part)
                while view:
                    view = view[self._jobs.write(view) :]
        except BrokenPipeError:
            raise EOFError from None
        (length,) = LENGTH.unpack(self._read(LENGTH.size))
        reply: Reply = decode_reply(self._read(length))
        return reply

    def payload(self, sizes: Sequence[int]) -> list[Buffer]:
        """Read the payload of a reply; returns each part as bytes.

        Raises:
            EOFError: The process ended.
        """
        return [self._read(size) for size in sizes]

    def payload_into(self, memory: memoryview, sizes: Sequence[int]) -> list[Buffer]:
        """Read the payload of a reply into `memory`, one part after the other.

        Raises:
            EOFError: The process ended.
        """
        parts: list[Buffer] = []
        for size in sizes:
            part, memory = memory[:size], memory[size:]
            parts.append(part)
            rest = part
            while rest:
                count = self._results.readinto(rest)
                if not count:
                    raise EOFError
                rest = rest[count:]
        return parts

    def _read(self, size: int) -> bytes:
        data = self._results.read(size)
        if len(data) < size:
            raise EOFError
        return data

    def kill(self) -> None:
        """Kill the process; a thread that waits for it gets EOFError."""
        self._process.kill()

    def close(self) -> None:
        """Kill the process, wait for its end and close the pipes; no thread may wait for it."""
        self._process.kill()
        self._process.wait()
        self._jobs.close()
        self._results.close()

    def __repr__(self) -> str:
        return f"<CodecProcess {self.pid}>"


def _enlarge_pipe(pipe: io.FileIO) -> None:
    """Enlarge the buffer of a pipe beyond 64 KiB, if the system supports it."""
    try:
        import fcntl  # noqa: PLC0415  it does not exist on every platform
    except ImportError:
        return
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # the memory for a user's pipes is limited
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
