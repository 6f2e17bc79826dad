# SPDX-License-Identifier: Apache-2.0
"""Processes that are forked from one that has imported their modules, in milliseconds.

A `Template` is started when it is first used, by the first lines that the processes themselves
would have. It imports what they import, before there is a thread or an event loop, and then forks
one for each request that comes over a socket, with its descriptors. The process closes what is the
template's, and calls the same function as a process that is started for itself: only imports are
spared. What it has of its own is sent: arguments, variables, folder, descriptors, session.

- Where the process would differ from one that is started as usual, `Template.fork` returns None,
  and the caller starts it as usual: on other systems than Linux, where a fork after the imports is
  not safe; if a variable that is read while modules are imported differs from the template's; and
  if what processes inherit does: signals, limits, cores, umask, user, group of processes.
- The process is a child of the template, which tells its exit code over a socket, and keeps its id
  from other processes until it was waited for. Signals are sent by a pidfd.
- What lists of processes show is the template's: its variables, and its command line unless the
  package setproctitle is installed.
- The template ends when this process does, as its socket ends. The processes go on, and end as
  they do without it: a server watches its control socket and the process that started it.
- If the template ends, everything is started as usual from then on. Of a process that it has
  forked, the end is seen by its pidfd, and the exit code is unknown: 255.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytriton.base.lazy_module import LazyModule
from pytriton.base.package import IMPORT_FOLDER
from pytriton.runtime.transport.link import stream_pair
from pytriton.runtime.transport.memory import is_portable_forced

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytriton.binding import template_process
    from pytriton.runtime.transport.link import RecordLink
else:  # imported while the template imports its own modules
    template_process = LazyModule("pytriton.binding.template_process")

# Variables that Python, the C library or our modules read before the first line of a process.
# Those of OpenBLAS and of others that start threads are read when it is loaded.
READ_AT_IMPORT = frozenset(
    {
        "HOME",
        "LANG",
        "LANGUAGE",
        "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION",
        "PYTRITON_HOME",
        "PYTRITON_PORTABLE_CHANNEL",
        "TEMPORARILY_DISABLE_PROTOBUF_VERSION_CHECK",
        "TZ",
        "TZDIR",
        "XDG_CACHE_HOME",
    }
)
_PREFIXES_READ_AT_IMPORT = (
    *("ARROW_", "BLIS_", "COVERAGE_", "GLIBC_", "GOMP_", "GOTO_", "KMP_", "LC_", "LD_", "MALLOC_"),
    *("MKL_", "NPY_", "NUMPY_", "OMP_", "OPENBLAS_", "PYTHON", "UV_"),
)
# Lines of /proc/thread-self/status that a process has from the one that starts it.
_INHERITED = frozenset(
    {
        *("Umask", "Uid", "Gid", "Groups", "NSpgid", "NSsid", "SigBlk", "SigIgn", "CapInh"),
        *("CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters"),
        *("Cpus_allowed", "Mems_allowed"),
    }
)
_BOOTSTRAP = (
    "import gc, sys; sys.path[0] = sys.argv.pop(1); gc.disable(); "
    "from pytriton.base.openblas import {load}; {load}(); "
    "from pytriton.binding.template_process import main; main()"
)
_UNKNOWN_EXIT_CODE = 255


class Program(NamedTuple):
    """What a forked process runs.

    Attributes:
        module: the module with the function; the template has imported it, or the process does.
        function: the name of the function, which is called without arguments.
        argv: the value of `sys.argv`.
        first_path: the first folder in which the process looks for modules.
    """

    module: str
    function: str
    argv: Sequence[str]
    first_path: str = IMPORT_FOLDER


class ForkedProcess:
    """A process that a template has forked, with the methods of `subprocess.Popen`."""

    def __init__(self, pid: int, pidfd: int, end: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd = pidfd
        self._end = end
        self._lock = threading.Lock()
        # Kept open until then, as several threads may wait.
        weakref.finalize(self, os.close, pidfd)
        weakref.finalize(self, end.close)

    def poll(self) -> int | None:
        """Returns the exit code; None if the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended; returns its exit code.

        Raises:
            subprocess.TimeoutExpired: It has not ended in time.
        """
        end = None if timeout is None else time.monotonic() + timeout
        if self.returncode is None:
            self._await(self._end.fileno(), end, timeout)
        with self._lock:
            if self.returncode is None:
                code = template_process.exit_code_of(self._end.recv(16))
                if code is None:
                    self._await(self._pidfd, end, timeout)
                else:
                    self._end.shutdown(socket.SHUT_WR)
                    self._end.recv(1)  # the end: the template has waited for its child
                self.returncode = _UNKNOWN_EXIT_CODE if code is None else code
        return self.returncode

    def _await(self, descriptor: int, end: float | None, timeout: float | None) -> None:
        events = select.poll()
        events.register(descriptor, select.POLLIN)
        left_ms = None if end is None else max(0.0, end - time.monotonic()) * 1000
        if not events.poll(left_ms):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)

    def send_signal(self, number: int) -> None:
        """Send a signal; nothing happens if the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)


class Template:
    """Forks processes that import the same modules.

    Args:
        load: the function of `pytriton.base.openblas` with which the processes load numpy.
        modules: what the template imports.
        environment: the variables of the template; by default those that this process has now.
    """

    def __init__(
        self, load: str, modules: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._command = [sys.executable, "-c", _BOOTSTRAP.format(load=load), IMPORT_FOLDER]
        self._modules = modules
        self._environment = dict(os.environ if environment is None else environment)
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._state: _RunningTemplate | None = None
        self._has_ended = not can_fork()

    def fork(
        self,
        program: Program,
        *,
        streams: tuple[int, int, int],
        inherited: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        folder: str = ".",
        has_own_session: bool = False,
    ) -> ForkedProcess | None:
        """Fork a process; returns None where it has to be started as usual.

        Args:
            program: what it runs.
            streams: the descriptors of its standard streams.
            inherited: other descriptors that it gets, with the same numbers.
            environment: its variables; by default those of this process.
            folder: its working directory.
            has_own_session: whether it is the leader of a session of its own.
        """
        variables = os.environ if environment is None else environment
        if self._has_ended or os.getpid() != self._owner:
            return None
        if _read_at_import(variables) != _read_at_import(self._environment):
            return None
        with self._lock:
            if self._state is None:
                self._state = self._start()
            if self._state.inherited != _inherited_state() or self._has_ended:
                return None
            request = template_process.ForkRequest(
                program.module,
                program.function,
                [os.fsencode(argument) for argument in program.argv],
                os.fsencode(program.first_path),
                {os.fsencode(name): os.fsencode(value) for name, value in variables.items()},
                [0, 1, 2, *inherited],
                has_own_session,
            )
            with contextlib.ExitStack() as stack:
                try:
                    directory = os.open(folder, os.O_PATH | os.O_DIRECTORY)
                except OSError:  # the usual start reports it
                    return None
                stack.callback(os.close, directory)
                try:
                    return self._state.fork(request, [directory, *streams, *inherited])
                except (EOFError, OSError):  # it was killed, or cannot fork
                    self._end()
                    return None

    def _start(self) -> _RunningTemplate:
        state = _inherited_state()
        ours, theirs = stream_pair()
        with theirs:
            process = subprocess.Popen(
                [*self._command, str(theirs.fileno()), *self._modules],
                stdin=subprocess.DEVNULL,
                env=self._environment,
                pass_fds=(theirs.fileno(),),
            )
        atexit.register(self.close)
        return _RunningTemplate(process, template_process.answer_link(ours), state)

    def close(self) -> None:
        """End the template; the processes that it has forked go on."""
        if os.getpid() == self._owner:
            with self._lock:
                self._end()

    def _end(self) -> None:
        self._has_ended = True
        if self._state is not None:
            self._state.close()
            atexit.unregister(self.close)
            self._state = None


class _RunningTemplate:
    """A started template.

    Attributes:
        inherited: what it has from this process, and so do those that it forks.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        link: RecordLink[template_process.ForkRequest | template_process.ForkAnswer],
        inherited: object,
    ) -> None:
        self._process = process
        self._link = link
        self.inherited = inherited

    def fork(
        self, request: template_process.ForkRequest, descriptors: Sequence[int]
    ) -> ForkedProcess:
        """Fork a process.

        Raises:
            EOFError: The template has ended.
            OSError: The same, or it cannot fork.
        """
        with contextlib.ExitStack() as on_error:
            end, teller = socket.socketpair()
            on_error.enter_context(end)
            with teller:
                self._link.send(request, [descriptors[0], teller.fileno(), *descriptors[1:]])
            answer = self._link.receive()
            assert isinstance(answer, template_process.ForkAnswer)
            if not answer.pid:
                raise OSError("the template cannot fork")
            (pidfd,) = self._link.take_descriptors(1)
            on_error.pop_all()
        return ForkedProcess(answer.pid, pidfd, end)

    def close(self) -> None:
        """End the template."""
        self._link.close()
        self._process.wait()


def can_fork() -> bool:
    """Whether processes may be forked after imports here, and watched although others fork them."""
    if sys.platform != "linux" or is_portable_forced():
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:  # an old kernel, or a sandbox
        return False
    return True


def _read_at_import(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in variables.items()
        if name in READ_AT_IMPORT or name.startswith(_PREFIXES_READ_AT_IMPORT)
    }


def _inherited_state() -> object:
    """Returns what a process that this thread starts would have from this process."""
    own = Path("/proc/thread-self")
    status = [
        line
        for line in (own / "status").read_text().splitlines()
        if line.partition(":")[0] in _INHERITED
    ]
    limits = (own / "limits").read_text()
    groups = (own / "cgroup").read_text()
    badness = (own / "oom_score_adj").read_text()
    return status, limits, groups, badness, os.getpriority(os.PRIO_PROCESS, 0), sys.executable
