# SPDX-License-Identifier: Apache-2.0
"""The process of an instance, which an actor starts and ends with itself. Knows nothing of Ray."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections import deque
from typing import TYPE_CHECKING

from pytriton.runtime.executor.remote.output_return import OutputReturn
from pytriton.runtime.executor.remote.starter import LAST_OUTPUT
from pytriton.runtime.executor.worker import describe_exit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import IO

_LAST_LINES = 20
_LINE_BYTES = 2000
_LAST_OUTPUT_S = 1.0  # to read what the process wrote last, if others hold its pipe open


class Child:
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
        reader.join(_LAST_OUTPUT_S)
        returned.close()
        lines = "\n".join(self._lines)
        reason = describe_exit(code)
        self._on_end(f"{reason}{LAST_OUTPUT}{lines}" if lines else reason)

    def _read(self, output: IO[bytes], returned: OutputReturn) -> None:
        with output:
            for line in iter(lambda: output.readline(_LINE_BYTES), b""):
                self._lines.append(line.decode(errors="replace").rstrip())
                returned.add(line)
                with contextlib.suppress(OSError):
                    os.write(2, line)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for the process, and kill what it has started; returns its exit code."""
    if hasattr(os, "waitid"):
        with contextlib.suppress(ChildProcessError):  # other code has reaped it
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        _kill_group(process.pid)  # before it is reaped, as its id cannot be another's until then
    return process.wait()


def _kill_group(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
