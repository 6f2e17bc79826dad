# SPDX-License-Identifier: Apache-2.0
"""Worker processes as instances and launchers see them: interfaces, placement, exit, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING, Protocol

import msgspec

from pytriton.base.errors import InternalError, ServerError, UnavailableError, resource_error
from pytriton.base.sandbox import SandboxPolicy
from pytriton.runtime.transport.memory import is_portable_forced
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.peer_account import PeerAccount

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from pytriton.runtime.executor.call_server import WorkerServices
    from pytriton.runtime.executor.remote.remote_launcher import RankGroup
    from pytriton.runtime.transport.arena import Arena, MemoryTrimmer
    from pytriton.runtime.transport.channel import Channel

PROCESS_ENDED = "its process ended"
_WATCH_RETRY_S = 0.5


class Placement(msgspec.Struct, frozen=True):
    """The resources that a cluster has to give to one instance."""

    num_cpus: float = 1.0  # processors, of each process
    num_gpus: float = 0.0  # GPUs, of each process; fractions share one
    resources: dict[str, float] = {}  # resources that nodes declare by name, of each process
    group_size: int = 1  # the number of processes that are one instance together
    # Whether the instances of a model are spread over nodes, rather than packed.
    is_spread: bool = True
    # How long a start may take, in which it may have to wait for a free node.
    start_timeout_s: float = 120.0


class ForkingProcessEndedError(InternalError):
    """A worker ended because the process that forked it ended; its model is not the cause."""


class InstanceUnavailableError(UnavailableError):
    """A process elsewhere could not be placed in time, or was lost with its machine or connection.

    Its model is not the cause: such a start is repeated, and is no crash.
    """


class ResourceLackError(InstanceUnavailableError):
    """This machine has no resources for another process. The start fails at once."""


def start_error(instance_name: str, error: Exception) -> ServerError:
    """Returns the error of a process that could not be started on this machine."""
    failure = f"Cannot start the process of '{instance_name}': "
    lack = resource_error(error)
    if lack is not None:
        return ResourceLackError(failure + lack.message)
    return InternalError(failure + str(error))


class WorkerChild(Protocol):
    """The part of `subprocess.Popen` by which a child is watched and ended."""

    pid: int

    @property
    def returncode(self) -> int | None:
        """Its exit code after `wait`; negative for a signal."""

    def wait(self) -> int:
        """Wait until it has ended."""

    def kill(self) -> None:
        """Send SIGKILL."""


class WorkerSpec(msgspec.Struct, frozen=True):
    """How to start the process of one instance."""

    instance_name: str
    title: str  # shown in process lists
    environment: dict[str, str] = {}  # variables in addition to the server's
    interpreter: str | None = None  # None: that of the server
    # Modules that take long to import. Workers with the same ones are forked by a process that has
    # imported them, unless they have an interpreter of their own.
    preload: tuple[str, ...] = ()
    placement: Placement | None = None  # None: on this machine
    sandbox: SandboxPolicy | None = None  # None: it has no sandbox
    # The model that it is an instance of, for people who look at a cluster.
    model: str = ""
    version: int = 0
    namespace: str = ""


class WorkerHandle(Protocol):
    """A running process, which a launcher has started and watches.

    Its instance owns its connection: nothing here reads or writes frames.
    """

    instance_name: str
    node: str  # where it runs, for people; "" on this machine
    is_enclosed: bool  # it is in a sandbox
    pid: int
    exited: asyncio.Future[str]  # its result is the reason as text
    is_to_blame: bool  # False if it ended because another process ended
    loss: str  # says that its connection ended, if nothing else is known about its end
    exit_timeout_s: float  # how long to wait after that for `exited`, which says more

    @property
    def fork_socket(self) -> socket.socket | None:
        """Brings the channels of processes that it forks; None if these can have none."""

    def open_channel(self, arena: Arena) -> Channel:
        """Returns the channel to it, with the server's arena for large tensors; call it once."""

    def open_group(
        self,
        memory: MemoryTrimmer,
        loop: asyncio.AbstractEventLoop,
        services: WorkerServices,
        on_lost: Callable[[str], None],
    ) -> RankGroup | None:
        """Returns the other processes of an instance that is made of several; call it once."""

    def on_lost(self) -> None:
        """Note that its connection has ended."""

    def kill(self) -> None:
        """Kill the process, unless it has ended."""


class Launcher(Protocol):
    """Starts the processes of instances, here or elsewhere.

    It promises that a process which `launch` did not return is ended, whatever went wrong or was
    cancelled, and that none outlives `close`. It loads no model and sends no frames, does not start
    a process again that has ended, and has no opinion on how many there should be.

    Attributes:
        recovery: Tells when a start that failed should be tried again at once.
    """

    recovery: Recovery

    async def launch(self, spec: WorkerSpec) -> WorkerHandle:
        """Start a process. Cancelling the task stops the wait.

        Raises:
            ServerError: No process could be started.
        """

    async def close(self) -> None:
        """End all processes that were started, and wait until they have ended."""


class LocalWorker:
    """A process of this machine; see `WorkerHandle`."""

    node: str = ""
    is_enclosed: bool  # it is in a sandbox
    loss: str = "it closed its connection"
    exit_timeout_s: float = 1.0  # a busy machine is slow to tell how a process ended

    def __init__(
        self,
        instance_name: str,
        pid: int,
        sockets: tuple[socket.socket, socket.socket],
        kill: Callable[[], None],
        exited: asyncio.Future[str],
        *,
        is_enclosed: bool = False,
    ) -> None:
        self.instance_name = instance_name
        self.is_enclosed = is_enclosed
        self.pid = pid
        self.channel, self.fork_socket = sockets
        self.exited = exited
        self.is_to_blame = True
        self._kill = kill

    def open_channel(self, arena: Arena) -> Channel:
        """See `WorkerHandle`."""
        return MemoryChannel(
            self.channel, arena, to_sandbox=self.is_enclosed, account=PeerAccount()
        )

    def open_group(self, *_: object) -> RankGroup | None:
        """See `WorkerHandle`."""
        return None

    def on_lost(self) -> None:
        """See `WorkerHandle`."""

    def kill(self) -> None:
        """See `WorkerHandle`."""
        if not self.exited.done():
            self._kill()

    def __repr__(self) -> str:
        return f"<LocalWorker {self.instance_name} pid={self.pid} exited={self.exited.done()}>"


def describe_loss(error: Exception) -> str:
    """Returns as text why the channel of a process was lost; see `LoopChannel`."""
    if isinstance(error, EOFError | ConnectionError | TimeoutError):
        return PROCESS_ENDED
    if isinstance(error, OSError):
        return f"nothing can be sent to it: {error}"
    return "its answer could not be read"


def describe_exit(code: int) -> str:
    """Returns as text how a process ended; a negative code is the signal that killed it."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "a signal"
    return f"killed by {name} ({-code})"


def watch_exit(
    process: WorkerChild, loop: asyncio.AbstractEventLoop, *, with_group: bool = False
) -> asyncio.Future[str]:
    """Reap a child when it ends; the future is done then. `with_group` kills its group first."""
    watch = _ExitWatch(process, loop, with_group=with_group)
    watch.start()
    return watch.exited


class _ExitWatch:
    """Waits for the end of a child, by a descriptor if there is one, otherwise in a thread."""

    def __init__(
        self, process: WorkerChild, loop: asyncio.AbstractEventLoop, *, with_group: bool
    ) -> None:
        self.exited: asyncio.Future[str] = loop.create_future()
        self._process = process
        self._loop = loop
        self._with_group = with_group

    def start(self) -> None:
        pid, loop = self._process.pid, self._loop
        descriptor = open_pidfd(pid)
        if descriptor is not None:
            loop.add_reader(descriptor, self._on_readable)
            self.exited.add_done_callback(lambda _: _close_watched(descriptor, loop))
            return
        try:
            threading.Thread(target=self._wait, name=f"wait for {pid}", daemon=True).start()
        except RuntimeError:  # neither descriptors nor threads are left now
            loop.call_later(_WATCH_RETRY_S, self.start)

    def _on_readable(self) -> None:
        self._reap()
        self._report()

    def _wait(self) -> None:
        if hasattr(os, "waitid"):
            with contextlib.suppress(ChildProcessError):  # other code has reaped it
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
        self._reap()
        with contextlib.suppress(RuntimeError):  # the loop was closed, so nothing waits for this
            self._loop.call_soon_threadsafe(self._report)

    def _reap(self) -> None:
        # Kill the group before the pid can be reused: the child may have started processes.
        if self._with_group:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _report(self) -> None:
        if not self.exited.done():
            self.exited.set_result(describe_exit(self._process.returncode or 0))


def open_pidfd(pid: int) -> int | None:
    """Returns a pidfd, which never refers to another process; None if it cannot be opened."""
    if not hasattr(os, "pidfd_open") or is_portable_forced():
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # an old kernel, no free file descriptor, or the process has ended
        return None


def _close_watched(descriptor: int, loop: asyncio.AbstractEventLoop) -> None:
    loop.remove_reader(descriptor)
    os.close(descriptor)


class Recovery:
    """Wakes delayed restarts when the cluster is reachable again or gains a node.

    Attributes:
        count: How often it did.
    """

    def __init__(self) -> None:
        self.count = 0
        self._pauses: dict[asyncio.Future[None], None] = {}

    def announce(self) -> None:
        """End all pauses."""
        self.count += 1
        for pause in self._pauses:
            if not pause.done():
                pause.set_result(None)

    async def pause(self, delay_s: float) -> None:
        """Wait for `delay_s`, or until the next announcement."""
        pause: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pauses[pause] = None
        try:
            await asyncio.wait([pause], timeout=delay_s)
        finally:
            self._pauses.pop(pause, None)

    def __repr__(self) -> str:
        return f"<Recovery {self.count} times, {len(self._pauses)} pauses>"
