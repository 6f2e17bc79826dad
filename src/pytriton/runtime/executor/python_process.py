# SPDX-License-Identifier: Apache-2.0
"""Starts the Python processes of this package: zygotes, and workers without a zygote."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from typing import IO, TYPE_CHECKING, NamedTuple

from pytriton.base.errors import InternalError, resource_error
from pytriton.base.package import IMPORT_FOLDER, command_of_worker
from pytriton.runtime.transport.link import close_in_forked_children, stream_pair
from pytriton.runtime.transport.memory import is_portable_forced

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytriton.runtime.executor.worker import WorkerChild

# The parent folder of this package replaces the working directory as the first entry of sys.path,
# so that no file of the user is imported in place of a module of ours. Modules are no garbage:
# looking for some while and after they are imported takes a tenth of a start.
_ZYGOTE_BOOTSTRAP = (
    "import gc, importlib, sys; sys.path[0] = sys.argv.pop(1); gc.disable(); "
    "from pytriton.base.openblas import load_without_threads; load_without_threads(); "
    "module = importlib.import_module(sys.argv.pop(1)); gc.freeze(); gc.enable(); "
    "module.main(sys.argv[1:])"
)
START_SETTING = "PYTRITON_WORKER_START"  # "spawn": workers are not forked
_ASK_VERSION = "import sys; print(*sys.version_info[:2])"
_VERSION_TIMEOUT_S = 60.0


def can_fork_workers() -> bool:
    """Whether workers may be forked by a zygote."""
    # On other systems it is not safe to fork a process that has used numpy.
    return (
        sys.platform == "linux"
        and not is_portable_forced()
        and os.environ.get(START_SETTING) != "spawn"
    )


class ForkedWorker:
    """A forked child; see `WorkerChild`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self) -> int:
        """Wait until it has ended."""
        if self.returncode is None:
            _, status = os.waitpid(self.pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def kill(self) -> None:
        """Send SIGKILL."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


class StartedZygote(NamedTuple):
    """A process that forks others, the socket for its fork requests, and what it prints."""

    process: WorkerChild
    socket: socket.socket
    output: IO[bytes] | None = None  # None: it prints where this process does


def start_zygote(
    module: str = "pytriton.runtime.worker_process.zygote",
    preload: Sequence[str] = (),
    *,
    takes_output: bool = False,
    environment: Mapping[str, str] | None = None,
) -> StartedZygote:
    """Start the zygote whose `main` is in `module`; it imports `preload` for its workers.

    Without `environment`, it has that of this process.
    """
    ours, theirs = stream_pair()
    with theirs:
        command = [sys.executable, "-c", _ZYGOTE_BOOTSTRAP, IMPORT_FOLDER, module]
        process = subprocess.Popen(
            [
                *command,
                "--control-fd",
                str(theirs.fileno()),
                *(f"--preload={name}" for name in preload),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if takes_output else None,
            stderr=subprocess.STDOUT if takes_output else None,
            pass_fds=[theirs.fileno()],
            env=environment,
        )
    return StartedZygote(process, ours, process.stdout)


def fork_zygote(run: Callable[[socket.socket], None]) -> StartedZygote:
    """Fork a zygote off this process, which must not have threads or a running event loop yet.

    In the forked process, this calls `run` with the socket for fork requests, and then exits.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    close_in_forked_children(ours)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        run(theirs)
        sys.exit()
    theirs.close()
    return StartedZygote(ForkedWorker(pid), ours)


def start_worker(
    interpreter: str,
    title: str,
    sockets: tuple[socket.socket, socket.socket],
    variables: Mapping[str, str],
    fallback_paths: Sequence[str],
) -> subprocess.Popen[bytes]:
    """Start a worker as the leader of its own process group, which is killed with it."""
    channel, fork_socket = (each.fileno() for each in sockets)
    connection = ["--channel-fd", str(channel), "--fork-fd", str(fork_socket)]
    environment = {**os.environ, **variables}
    if interpreter != sys.executable:
        environment.pop("PYTHONHOME", None)  # it is for the server's own Python
    return subprocess.Popen(
        command_of_worker(interpreter, title, connection, fallback_paths),
        stdin=subprocess.DEVNULL,
        pass_fds=[channel, fork_socket],
        env=environment,
        start_new_session=True,
    )


def fallback_paths(interpreter: str) -> list[str]:
    """Returns the folders in which another Python finds our numpy and msgspec if it lacks them.

    This starts that interpreter once to ask for its version: compiled modules work only with the
    same version of Python, so for another version the list is empty.

    Raises:
        InternalError: The interpreter is not a Python, or does not run.
        OSError: The machine lacks resources to start it.
    """
    try:
        asked = subprocess.run(
            [interpreter, "-c", _ASK_VERSION],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            env={name: value for name, value in os.environ.items() if name != "PYTHONHOME"},
        )
    except subprocess.CalledProcessError as error:
        raise InternalError(f"The Python '{interpreter}' does not run: {error.stderr}") from error
    except (OSError, subprocess.SubprocessError) as error:
        if resource_error(error) is not None:
            raise
        raise InternalError(f"The Python '{interpreter}' does not run: {error}") from error
    if asked.stdout.split() != [str(part) for part in sys.version_info[:2]]:
        return []
    return own_packages()


def own_packages() -> list[str]:
    """Returns the folders in which this Python finds packages that were installed."""
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
