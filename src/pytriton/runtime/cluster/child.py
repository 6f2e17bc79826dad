# SPDX-License-Identifier: Apache-2.0
"""The process of an instance on its node: its command, and its parent, which ends with it.

The parent reads what the process prints, so that the last words of a crash are not lost, and writes
the lines to its standard input. There `worker_process/remote.py` sends them to the server's log.
Nothing here knows Ray.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from typing import IO, TYPE_CHECKING

from pytriton.base.package import command_of_worker
from pytriton.runtime.executor.python_process import fallback_paths
from pytriton.runtime.executor.remote.starter import LAST_OUTPUT
from pytriton.runtime.executor.worker import Placement, describe_exit
from pytriton.runtime.transport.handshake import pytriton_version
from pytriton.runtime.transport.rendezvous import TOKEN_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytriton.runtime.executor.remote.starter import StartOrder

# A model may print without end. The server's log takes this many lines of one process.
LINES_PER_S = 500.0
MAX_BURST_LINES = 2000.0
# Up to this size (PIPE_BUF on Linux) a line is written as a whole or not at all.
_MAX_LINE_BYTES = 4096
_SAY_AFTER_S = 1.0
_LAST_LINES = 20
_LINE_BYTES = 2000
# What the process wrote last is waited for while it comes, but others may hold its pipe open.
_LAST_OUTPUT_S = 1.0
_MAX_LAST_WAITS = 30


class OutputReturn:
    """The pipe to the standard input of a process, which leaves lines out rather than wait."""

    def __init__(self, stdin: IO[bytes], clock: Callable[[], float] = time.monotonic) -> None:
        self._stdin = stdin
        self._clock = clock
        self._lock = threading.Lock()
        self._budget = MAX_BURST_LINES
        self._refilled_s = clock()
        self._left_out = 0
        self._timer: threading.Timer | None = None
        os.set_blocking(stdin.fileno(), False)

    def add(self, line: bytes) -> None:
        """Return a line, or a part of a long one."""
        with self._lock:
            if self._stdin.closed:
                return
            if self._takes_line() and self._say_left_out() and self._write(line):
                self._budget -= 1
                return
            self._left_out += 1
            self._say_later()

    def close(self) -> None:
        """Close the pipe, which ends the process if it still runs; may be called twice."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._stdin.close()

    def __repr__(self) -> str:
        return f"<OutputReturn left_out={self._left_out} closed={self._stdin.closed}>"

    def _takes_line(self) -> bool:
        now_s = self._clock()
        earned = (now_s - self._refilled_s) * LINES_PER_S
        self._refilled_s = now_s
        self._budget = min(self._budget + earned, MAX_BURST_LINES)
        return self._budget >= 1

    def _write(self, line: bytes) -> bool:
        """Returns whether the whole line is written."""
        data = line.rstrip(b"\r\n")[: _MAX_LINE_BYTES - 1] + b"\n"
        try:
            return os.write(self._stdin.fileno(), data) == len(data)
        except OSError:  # the pipe is full, or the process has ended
            return False

    def _say_left_out(self) -> bool:
        """Returns whether nothing is left out that was not said."""
        count = self._left_out
        if count and self._write(b"%d lines of output were left out here" % count):
            self._left_out = 0
        return not self._left_out

    def _say_later(self) -> None:
        # Nothing more may be printed, so the next line cannot be waited for.
        if self._timer is None:
            self._timer = threading.Timer(_SAY_AFTER_S, self._on_time)
            self._timer.daemon = True
            self._timer.start()

    def _on_time(self) -> None:
        with self._lock:
            self._timer = None
            if not self._stdin.closed and not self._say_left_out():
                self._say_later()


class InstanceProcess:
    """A process in a group of its own. Its output goes to ours, and the last lines are kept.

    Each line is also given back to the process, which sends it to the server. The thread that
    starts the process waits for it: the kernel kills it when this thread ends, as it asked for
    that. Its standard input is a pipe that ends with this process, too.
    """

    def __init__(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        on_end: Callable[[str], None],
    ) -> None:
        self._command = list(command)
        self._environment = {**os.environ, **variables}
        self._on_end = on_end
        self._process: subprocess.Popen[bytes] | None = None
        self._error: OSError | None = None
        self._is_started = threading.Event()
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._line_count = 0

    def start(self) -> int:
        """Start the process; returns its id.

        Raises:
            OSError: It cannot be started.
        """
        threading.Thread(target=self._run, name="instance", daemon=True).start()
        self._is_started.wait()
        if self._process is None:
            assert self._error is not None
            raise self._error
        return self._process.pid

    def kill(self) -> None:
        """Kill the process and those that it has started, unless it has ended."""
        if self._process is not None and self._process.returncode is None:
            _kill_group(self._process.pid)

    def _run(self) -> None:
        try:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._error = error
            return
        finally:
            self._is_started.set()
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        returned = OutputReturn(self._process.stdin)
        reader = threading.Thread(
            target=self._read, args=[self._process.stdout, returned], daemon=True
        )
        reader.start()
        code = _wait(self._process)
        self._await_last_lines(reader)
        returned.close()
        lines = "\n".join(self._lines)
        reason = describe_exit(code)
        self._on_end(f"{reason}{LAST_OUTPUT}{lines}" if lines else reason)

    def _await_last_lines(self, reader: threading.Thread) -> None:
        for _ in range(_MAX_LAST_WAITS):
            count = self._line_count
            reader.join(_LAST_OUTPUT_S)
            if self._line_count == count:
                return

    def _read(self, output: IO[bytes], returned: OutputReturn) -> None:
        with output:
            for line in iter(lambda: output.readline(_LINE_BYTES), b""):
                self._lines.append(line.decode(errors="replace").rstrip())
                self._line_count += 1
                returned.add(line)
                with contextlib.suppress(OSError):
                    os.write(2, line)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for the process, and kill its children; returns its exit code."""
    if hasattr(os, "waitid"):
        with contextlib.suppress(ChildProcessError):  # other code has reaped it
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        _kill_group(process.pid)  # before it is reaped, as its id cannot be another's until then
    return process.wait()


def _kill_group(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def worker_command(
    order: StartOrder, node_id: str, rank: int = 0
) -> tuple[list[str], dict[str, str]]:
    """Returns the arguments of a worker process, and what to add to its environment.

    Call it on the node that the process is to run on. For an instance with an interpreter of its
    own it starts that interpreter once, to ask for its version.

    Raises:
        InternalError: That interpreter does not run.
    """
    spec = order.spec
    interpreter = spec.interpreter or sys.executable
    connection = [f"--connect={address}" for address in order.addresses]
    connection += ["--start", order.name, "--node-id", node_id, "--rank", str(rank)]
    # Another interpreter has no package of ours whose version it could look up.
    connection += ["--version", pytriton_version()]
    environment: dict[str, str] = {}
    paths: list[str] = []
    if interpreter != sys.executable:
        paths = fallback_paths(interpreter)
        environment["PYTHONHOME"] = ""  # it is for the node's own Python
    if not (spec.placement or Placement()).num_gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ""  # else a cluster shows all GPUs
    environment.update(spec.environment)
    environment[TOKEN_VARIABLE] = order.token
    return command_of_worker(interpreter, spec.title, connection, paths), environment
