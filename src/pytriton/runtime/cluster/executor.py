# SPDX-License-Identifier: Apache-2.0
"""The Ray cluster of a server: opened with the first instance that runs there, closed with it.

The way to a process there has three owners. In the server, `RayExecutor` has the port for instances
and the launcher process, which it starts again when that ends. In the launcher process,
`ActorStarts` has the actors. On a node, an `ActorShell` has the process of an instance. Nothing
that runs depends on the launcher process: the next one finds the actors of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import importlib.util
import logging
import re
import secrets
from typing import TYPE_CHECKING

from msgspec import structs

from pytriton.base.background_tasks import within
from pytriton.base.errors import InternalError, UnavailableError, UnsupportedError
from pytriton.runtime.cluster.cluster import actor_name
from pytriton.runtime.cluster.messages import (
    TO_SERVER,
    Beat,
    Connect,
    Connected,
    ConnectFailed,
    Ended,
    Kill,
    LauncherHeartbeat,
    LauncherLink,
    Nodes,
    Placed,
    StartInstance,
    StartRefused,
    Waiting,
)
from pytriton.runtime.executor.python_process import start_zygote
from pytriton.runtime.executor.remote.instance_port import InstancePort
from pytriton.runtime.executor.remote.remote_launcher import RemoteLauncher
from pytriton.runtime.executor.remote.starter import ActorState, ActorStatus, ClusterStatus
from pytriton.runtime.executor.worker import (
    InstanceUnavailableError,
    Placement,
    Recovery,
    watch_exit,
)
from pytriton.runtime.transport.handshake import pytriton_version
from pytriton.runtime.transport.lines import LinePipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.base.errors import ServerError
    from pytriton.base.settings import RayOptions
    from pytriton.runtime.cluster.messages import ToServer
    from pytriton.runtime.executor.python_process import StartedZygote
    from pytriton.runtime.executor.remote.starter import ProcessPlace, StartOrder
    from pytriton.runtime.executor.worker import Launcher


logger = logging.getLogger(__name__)
LINE_BYTES = 4 << 10  # a longer line becomes several
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_FIRST_DELAY_S = 0.2
_MAX_DELAY_S = 15.0
_CALM_S = 60.0  # a process that lived so long was all right
_END_S = 20.0  # for the launcher process to end all actors


class RayProcess:
    """See `RemoteProcess`. The result of `exited` is how the process ended, where that is known.

    If it is not known, because the actor or its node was lost, `exited` has an exception.
    """

    def __init__(
        self,
        order: StartOrder,
        loop: asyncio.AbstractEventLoop,
        kill: Callable[[RayProcess], None],
    ) -> None:
        self.order = order
        self.instance = order.spec.instance_name
        self.places: tuple[ProcessPlace, ...] = ()
        self.placed: asyncio.Future[None] = loop.create_future()
        self.exited: asyncio.Future[str] = loop.create_future()
        self.waits_for = ""  # what the cluster lacks, while it is not placed
        self.is_killed = False
        self._kill = kill

    def kill(self) -> None:
        """See `RemoteProcess`."""
        if not self.exited.done():
            self._kill(self)

    def on_placed(self, places: tuple[ProcessPlace, ...]) -> None:
        """The processes run."""
        self.places = places
        self.waits_for = ""
        if not self.placed.done():
            self.placed.set_result(None)

    def on_refused(self, error: ServerError) -> None:
        """They cannot be started."""
        if not self.placed.done():
            self.placed.set_exception(error)
            self.placed.exception()  # marks it as retrieved, as the start may have been cancelled
        self.on_ended("was not started", is_known=True)

    def on_ended(self, reason: str, *, is_known: bool) -> None:
        """One of them has ended."""
        if not self.placed.done():
            self.on_refused(
                InstanceUnavailableError(f"Cannot start '{self.instance}': it {reason}")
            )
        elif not self.exited.done():
            if is_known:
                self.exited.set_result(reason)
            else:
                self.exited.set_exception(InstanceUnavailableError(reason))
                self.exited.exception()  # marks it as retrieved

    def status(self) -> list[ActorStatus]:
        """Returns the status of each actor."""
        spec = self.order.spec
        count = (spec.placement or Placement()).group_size
        actors = [
            ActorStatus(
                actor_name(self.order.name, rank),
                spec.instance_name,
                spec.model,
                spec.version,
                spec.namespace,
                rank=rank,
            )
            for rank in range(count)
        ]
        if not self.places:
            return actors
        return [
            structs.replace(actor, **structs.asdict(place), state=ActorState.STARTING)
            for actor, place in zip(actors, self.places, strict=True)
        ]

    def __repr__(self) -> str:
        return f"<RayProcess {self.order.name} placed={self.placed.done()} {self.exited}>"


def log_line(line: bytes) -> None:
    """Log a line that the launcher process has printed."""
    text = _COLOURS.sub("", line.decode(errors="replace")).rstrip()
    if text:
        logger.warning("ray: %s", text)


def require_ray() -> None:
    """Check that Ray is installed, without importing it.

    Raises:
        UnsupportedError: It is not.
    """
    if importlib.util.find_spec("ray") is None:
        raise UnsupportedError(
            "Instances on a Ray cluster need the package ray, which is not installed: "
            "pip install 'pytriton[ray]'"
        )


def start_launcher() -> StartedZygote:
    """Start the launcher process; returns it with our end of its control socket."""
    return start_zygote("pytriton.runtime.cluster.launcher", takes_output=True)


class Backoff:
    """Decides how long to wait before the process is started again. The caller passes the time."""

    def __init__(self) -> None:
        self._started_s = 0.0
        self._ends_in_a_row = 0

    def on_start(self, now_s: float) -> None:
        """Note when the process was started."""
        self._started_s = now_s

    def on_end(self, now_s: float) -> float:
        """Returns the seconds to wait, after the process has ended."""
        if now_s - self._started_s >= _CALM_S:
            self._ends_in_a_row = 0
        delay_s: float = min(_FIRST_DELAY_S * 2**self._ends_in_a_row, _MAX_DELAY_S)
        self._ends_in_a_row = min(self._ends_in_a_row + 1, 16)
        return delay_s


class LauncherState(enum.Enum):
    """The launcher process, as the server sees it."""

    OFF = "off"  # not started, or there was no cluster
    CONNECTING = "connecting"
    CONNECTED = "connected"
    AWAY = "away"  # it has ended, and is started again soon
    CLOSED = "closed"


_NEXT = {
    LauncherState.OFF: {LauncherState.CONNECTING, LauncherState.CLOSED},
    LauncherState.CONNECTING: {
        LauncherState.CONNECTED,
        LauncherState.AWAY,
        LauncherState.OFF,
        LauncherState.CLOSED,
    },
    LauncherState.CONNECTED: {LauncherState.AWAY, LauncherState.CLOSED},
    LauncherState.AWAY: {LauncherState.CONNECTING, LauncherState.CLOSED},
    LauncherState.CLOSED: set[LauncherState](),
}


class RayExecutor:
    """The launcher of instances on a Ray cluster, and what it starts them by: see `ProcessStarter`.

    It is used on the event loop's thread.
    """

    def __init__(
        self,
        options: RayOptions,
        loop: asyncio.AbstractEventLoop,
        start_process: Callable[[], StartedZygote] = start_launcher,
    ) -> None:
        self.recovery = Recovery()
        self._options = options
        self._loop = loop
        self._start_process = start_process
        self._namespace = f"pytriton-{secrets.token_hex(8)}"
        self._state = LauncherState.OFF
        self._problem = ""  # why no actor can be started now, if that is known
        self._link: LauncherLink | None = None
        self._process: StartedZygote | None = None
        self._output: LinePipe | None = None
        self._ended: asyncio.Future[str] | None = None  # that process
        self._heartbeat = LauncherHeartbeat(loop, self._on_silent)
        self._backoff = Backoff()
        self._timer: asyncio.TimerHandle | None = None
        self._cluster: Connected | None = None  # as it was told last
        self._waiters: list[asyncio.Future[Connected]] = []
        self._processes: dict[str, RayProcess] = {}
        self._known: tuple[str, ...] = ()  # those that the launcher process was told to take over
        self._restarts = -1
        self._lost_s: float | None = None  # since when the cluster has not answered
        self._opening = asyncio.Lock()
        self._port: InstancePort | None = None
        self._launcher: RemoteLauncher | None = None
        self._is_closing = False

    async def launcher(self) -> Launcher:
        """Returns what starts instances; connects to the cluster on the first call.

        Raises:
            UnsupportedError: Ray is not installed.
            UnavailableError: The cluster cannot be reached, or the port for instances not be
                opened. The next call tries again.
        """
        async with self._opening:
            if self._is_closing:
                raise UnavailableError("Server is stopping, no process is started any more")
            if self._launcher is None:
                require_ray()
                self._launcher = await self._open()
            return self._launcher

    async def _open(self) -> RemoteLauncher:
        cluster = await self.connect()
        host = self._options.instance_address or cluster.node_address
        port = InstancePort(self._loop, host, self._options.instance_port)
        try:
            await port.open()
        except OSError as error:
            raise UnavailableError(
                f"The port for instances on {host}:{self._options.instance_port} cannot be opened: "
                f"{error}"
            ) from error
        self._port = port
        return RemoteLauncher(port, self, self._loop)

    async def connect(self) -> Connected:
        """Start the launcher process, unless it runs, and wait until it has found the cluster.

        Raises:
            UnavailableError: There is no cluster, or the starter was closed.
        """
        if self._state is LauncherState.CONNECTED and self._cluster is not None:
            return self._cluster
        if self._state is LauncherState.CLOSED:
            raise UnavailableError("Server is stopping, no process is started any more")
        if self._cluster is not None and self._problem:
            raise InstanceUnavailableError(self._problem)  # the next attempt may take a minute
        waiter: asyncio.Future[Connected] = self._loop.create_future()
        self._waiters.append(waiter)
        if self._state is LauncherState.OFF:
            self._launch()
        return await waiter

    async def start(self, order: StartOrder) -> RayProcess:
        """See `ProcessStarter`.

        Raises:
            InstanceUnavailableError: There is no room or no cluster, within the time of its
                placement.
            InternalError: Its node cannot start it.
        """
        timeout_s = (order.spec.placement or Placement()).start_timeout_s
        process = RayProcess(order, self._loop, self._kill)
        try:
            await within(timeout_s, self._start(process))
        except asyncio.TimeoutError:
            self._kill(process)
            raise InstanceUnavailableError(
                f"Cannot start '{order.spec.instance_name}' within {timeout_s:g} s: "
                f"{process.waits_for or self._problem or 'its actor does not run yet'}"
            ) from None
        except BaseException:
            self._kill(process)
            raise
        return process

    async def _start(self, process: RayProcess) -> None:
        instance = process.order.spec.instance_name
        try:
            await self.connect()
        except UnavailableError as error:
            raise InstanceUnavailableError(f"Cannot start '{instance}': {error}") from error
        if self._problem:
            raise InstanceUnavailableError(f"Cannot start '{instance}': {self._problem}")
        self._processes[process.order.name] = process
        self._send(StartInstance(process.order))
        await process.placed

    def status(self) -> ClusterStatus:
        """Returns the last known status of the cluster."""
        cluster = self._cluster
        return ClusterStatus(
            is_connected=self._state is LauncherState.CONNECTED and not self._problem,
            problem=self._problem,
            address=self._options.address if cluster is None else cluster.address,
            nodes=() if cluster is None else cluster.nodes,
            actors=tuple(
                actor for process in self._processes.values() for actor in process.status()
            ),
            launcher_restarts=max(0, self._restarts),
            unreachable_s=0.0 if self._lost_s is None else self._loop.time() - self._lost_s,
        )

    async def close(self) -> None:
        """End all instances, and disconnect. It may be called twice."""
        self._is_closing = True
        if self._launcher is not None:
            await self._launcher.close()
        await self._end_launcher()
        async with self._opening:
            if self._port is not None:
                await self._port.close()
                self._port = None

    async def _end_launcher(self) -> None:
        if self._state is LauncherState.CLOSED:
            return
        self._change(LauncherState.CLOSED)
        self._heartbeat.stop()
        if self._timer is not None:
            self._timer.cancel()
        self._tell_waiters(UnavailableError("Server is stopping"))
        if self._link is not None:
            self._link.close()  # it ends all actors then
        if self._ended is not None and self._process is not None:
            await asyncio.wait([self._ended], timeout=_END_S)
            if not self._ended.done():
                logger.warning("the launcher process did not end in %g s and is killed", _END_S)
                self._process.process.kill()
                await self._ended
        if self._output is not None:
            self._output.close()
        for process in list(self._processes.values()):
            process.on_ended("was killed, as the server ends", is_known=True)
        self._processes.clear()

    def __repr__(self) -> str:
        return f"<RayExecutor {self._state.value} processes={len(self._processes)}>"

    def _change(self, state: LauncherState) -> None:
        assert state in _NEXT[self._state], f"{self._state} does not become {state}"
        self._state = state

    def _note_answer(self) -> None:
        """Note since when the cluster has not answered."""
        if self._state is LauncherState.CONNECTED and not self._problem:
            self._lost_s = None
        elif self._lost_s is None:
            self._lost_s = self._loop.time()

    def _launch(self) -> None:
        self._change(LauncherState.CONNECTING)
        self._timer = None
        self._restarts += 1
        self._backoff.on_start(self._loop.time())
        try:
            self._process = self._start_process()
        except OSError as error:  # no memory or no descriptor is free
            self._on_failed(f"the launcher process cannot be started: {error}")
            return
        self._ended = watch_exit(self._process.process, self._loop)
        if self._process.output is not None:
            self._output = LinePipe(self._process.output, self._loop, log_line, LINE_BYTES)
            self._output.start()
        self._link = LauncherLink(
            self._process.socket, self._loop, TO_SERVER, self._on_message, self._on_lost
        )
        self._link.start()
        self._heartbeat.start()
        self._known = tuple(
            name for name, process in self._processes.items() if process.placed.done()
        )
        self._link.send(
            Connect(
                self._options.address,
                self._namespace,
                self._options.working_dir,
                pytriton_version(),
                self._known,
            )
        )

    def _send(self, message: StartInstance | Kill) -> None:
        if self._state is LauncherState.CONNECTED and self._link is not None:
            self._link.send(message)

    def _kill(self, process: RayProcess) -> None:
        """End a process; if the launcher process is away, it does so when it is back."""
        if self._processes.get(process.order.name) is not process:
            return
        if self._state is LauncherState.CONNECTED:
            process.is_killed = True
            self._send(Kill(process.order.name))
        else:
            del self._processes[process.order.name]
            process.on_ended("was killed", is_known=True)

    def _on_message(self, message: ToServer) -> None:
        self._heartbeat.on_message()
        if isinstance(message, Beat):
            return
        if isinstance(message, Connected):
            self._on_connected(message)
        elif isinstance(message, ConnectFailed):
            self._on_failed(message.reason)
        elif isinstance(message, Nodes):
            self._on_nodes(message)
        else:
            self._on_process(message)

    def _on_process(self, message: Waiting | Placed | StartRefused | Ended) -> None:
        process = self._processes.get(message.name)
        if process is None:
            return
        if isinstance(message, Waiting):
            process.waits_for = message.reason
            logger.info("'%s' is not started yet: %s", process.instance, message.reason)
        elif isinstance(message, Placed):
            process.on_placed(message.places)
        elif isinstance(message, StartRefused):
            del self._processes[message.name]
            kind = InstanceUnavailableError if message.is_unavailable else InternalError
            process.on_refused(kind(f"Cannot start '{process.instance}': {message.reason}"))
        else:
            del self._processes[message.name]
            process.on_ended(message.reason, is_known=message.is_status_known or process.is_killed)

    def _on_connected(self, message: Connected) -> None:
        self._change(LauncherState.CONNECTED)
        self._heartbeat.on_running()
        if self._restarts:
            logger.info("the launcher process is connected to the Ray cluster again")
            self.recovery.announce()
        else:
            count = len(message.nodes)
            nodes = "1 node" if count == 1 else f"{count} nodes"
            logger.info("connected to the Ray cluster at %s, which has %s", message.address, nodes)
        self._problem = ""
        self._note_answer()
        self._cluster = message
        for name in self._known:
            if name not in self._processes:  # it was killed since
                self._send(Kill(name))
        for process in list(self._processes.values()):
            if not process.placed.done():
                self._send(StartInstance(process.order))
        self._tell_waiters(message)

    def _on_failed(self, reason: str) -> None:
        problem = f"the Ray cluster cannot be reached: {reason}"
        if self._cluster is not None and problem != self._problem:  # once for each reason
            logger.warning("%s; instances that run go on", problem)
        self._problem = problem
        self._tell_waiters(InstanceUnavailableError(self._problem))
        self._refuse_starts()
        if self._link is not None:
            self._link.close()
        self._on_lost(logging.DEBUG)  # it ends now; the next caller of `connect` begins anew

    def _on_nodes(self, message: Nodes) -> None:
        if message.problem and not self._problem:
            logger.warning("%s; instances that run go on", message.problem)
        assert self._cluster is not None
        known = {node.node_id for node in self._cluster.nodes}
        is_better = bool(self._problem) or any(node.node_id not in known for node in message.nodes)
        self._problem = message.problem
        self._note_answer()
        self._cluster = Connected(self._cluster.address, self._cluster.node_address, message.nodes)
        if message.problem:
            self._refuse_starts()
        elif is_better:
            self.recovery.announce()

    def _refuse_starts(self) -> None:
        for name, process in list(self._processes.items()):
            if not process.placed.done():
                self._send(Kill(name))
                del self._processes[name]
                process.on_refused(
                    InstanceUnavailableError(f"Cannot start '{process.instance}': {self._problem}")
                )

    def _tell_waiters(self, answer: Connected | Exception) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if waiter.done():
                continue
            if isinstance(answer, Exception):
                waiter.set_exception(answer)
            else:
                waiter.set_result(answer)

    def _on_silent(self) -> None:
        logger.warning(
            "the launcher process has not said anything for %g s and is killed",
            self._heartbeat.silent_s,
        )
        if self._link is not None:
            self._link.close()
        self._on_lost()

    def _on_lost(self, level: int = logging.WARNING) -> None:
        """Start the launcher process again, unless there never was a cluster."""
        if self._state not in (LauncherState.CONNECTING, LauncherState.CONNECTED):
            return  # it is closed, or known already
        self._heartbeat.stop()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.process.kill()  # it closed its socket, and may still hang
        if self._cluster is None:
            self._change(LauncherState.OFF)
            self._tell_waiters(
                UnavailableError(
                    "the launcher process, which connects to the Ray cluster, ended: its output in "
                    "the server's log says why"
                )
            )
            return
        self._change(LauncherState.AWAY)
        self._note_answer()
        for name, process in list(self._processes.items()):
            if process.is_killed:
                del self._processes[name]  # it is unknown to the next one, which ends it
                process.on_ended("was killed", is_known=True)
        delay_s = self._backoff.on_end(self._loop.time())
        text = "the launcher process ended and is started again in %.1f s; instances go on"
        logger.log(level, text, delay_s)
        self._timer = self._loop.call_later(delay_s, self._launch)
