# SPDX-License-Identifier: Apache-2.0
"""The messages between the server and its launcher process, the only one that knows Ray.

They are sent over a stream socket that the launcher process inherits. When the server closes its
end, the launcher process ends all actors and exits. The launcher process sends a `Beat` at regular
intervals; if none comes, it hangs.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec

from pytriton.runtime.executor.remote.starter import NodeStatus, ProcessPlace, StartOrder
from pytriton.runtime.transport.link import RecordLink

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

logger = logging.getLogger(__name__)

BEAT_S = 2.0
SILENT_BEATS = 15
# No Python code runs while Ray's libraries are being loaded, from a slow disk perhaps.
SILENT_BEATS_AT_START = 60


class Connect(msgspec.Struct, tag="connect", array_like=True):
    """Server to launcher, first: connect to the cluster, and end actors that are not known."""

    address: str  # the cluster's address; "": that of RAY_ADDRESS, or the cluster of this machine
    namespace: str  # that of this server's actors
    working_dir: str  # a folder that Ray copies to its nodes; "": none
    version: str  # the server's version of this package
    known: tuple[str, ...] = ()  # the names of starts whose processes the server uses


class StartInstance(msgspec.Struct, tag="start", array_like=True):
    """Server to launcher: start the process of an instance, or its group."""

    order: StartOrder


class Kill(msgspec.Struct, tag="kill", array_like=True):
    """Server to launcher: end a start, however far it has come."""

    name: str


class Connected(msgspec.Struct, tag="connected", array_like=True):
    """Launcher to server: starts are possible."""

    address: str  # of the cluster
    node_address: str  # of this machine, as nodes reach it
    nodes: tuple[NodeStatus, ...]


class ConnectFailed(msgspec.Struct, tag="connect_failed", array_like=True):
    """Launcher to server, last: there is no cluster."""

    reason: str


class Nodes(msgspec.Struct, tag="nodes", array_like=True):
    """Launcher to server: the nodes that are alive, or why nothing is known of them."""

    nodes: tuple[NodeStatus, ...]
    problem: str = ""


class Beat(msgspec.Struct, tag="beat", array_like=True):
    """Launcher to server, regularly: it does not hang; see `pytriton.runtime.cluster.messages`."""


class Waiting(msgspec.Struct, tag="waiting", array_like=True):
    """Launcher to server: the cluster has no room for a start yet."""

    name: str
    reason: str


class Placed(msgspec.Struct, tag="placed", array_like=True):
    """Launcher to server: the processes of a start run."""

    name: str
    places: tuple[ProcessPlace, ...]  # by rank


class StartRefused(msgspec.Struct, tag="refused", array_like=True):
    """Launcher to server: a start failed, and nothing is left of it."""

    name: str
    reason: str
    is_unavailable: bool = False  # whether the cluster is the cause, not the model or its node


class Ended(msgspec.Struct, tag="ended", array_like=True):
    """Launcher to server: a process that was placed has ended, and with it its group."""

    name: str
    reason: str
    is_status_known: bool = False  # whether its exit status is the reason, not a lost node or actor


ToLauncher = Connect | StartInstance | Kill
ToServer = Beat | Connected | ConnectFailed | Nodes | Waiting | Placed | StartRefused | Ended

TO_LAUNCHER: msgspec.msgpack.Decoder[ToLauncher] = msgspec.msgpack.Decoder(ToLauncher)
TO_SERVER: msgspec.msgpack.Decoder[ToServer] = msgspec.msgpack.Decoder(ToServer)


class LauncherLink:
    """Either end of the control socket of the launcher process, on an event loop."""

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        decoder: msgspec.msgpack.Decoder[Any],
        on_message: Callable[[Any], None],
        on_lost: Callable[[], None],
    ) -> None:
        sock.setblocking(False)
        self._link = RecordLink[Any](sock, decoder)
        self._loop = loop
        self._on_message = on_message
        self._on_lost = on_lost
        self._is_open = True

    def start(self) -> None:
        """Begin to read."""
        self._loop.add_reader(self._link.fileno(), self._on_readable)

    def send(self, message: ToLauncher | ToServer) -> None:
        """Send a message, unless the peer is gone, which `on_lost` tells."""
        if not self._is_open:
            return
        try:
            if self._link.send(message):
                self._loop.add_writer(self._link.fileno(), self._on_writable)
        except OSError:
            self._lose()

    def close(self) -> None:
        """Close this end; nothing is told any more."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._link.fileno())
            self._loop.remove_writer(self._link.fileno())
            self._link.close()

    def _on_writable(self) -> None:
        try:
            if self._link.flush():
                self._loop.remove_writer(self._link.fileno())
        except OSError:
            self._lose()

    def _on_readable(self) -> None:
        while self._is_open:
            try:
                message = self._link.receive()
            except (EOFError, OSError):
                self._lose()
                return
            except ValueError as error:
                logger.error("the peer of the launcher sent an invalid message: %s", error)  # noqa: TRY400  the message is enough
                self._lose()
                return
            if message is None:
                return
            self._on_message(message)

    def _lose(self) -> None:
        if self._is_open:
            self.close()
            # Not at once: a sender does not expect its answer while it sends.
            self._loop.call_soon(self._on_lost)


class LauncherHeartbeat:
    """Looks regularly whether something came from a process that should say something.

    It counts looks and not seconds: if the server was stopped itself, or its machine slept, the
    process has not become silent. `on_silent` is called once, when nothing came for too long.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_silent: Callable[[], None]) -> None:
        self._loop = loop
        self._on_silent = on_silent
        self._timer: asyncio.TimerHandle | None = None
        self._silent_beats = 0
        self._limit = SILENT_BEATS_AT_START

    def start(self) -> None:
        """Begin to look, at a process that has just been started."""
        self.stop()
        self._silent_beats = 0
        self._limit = SILENT_BEATS_AT_START
        self._look_later()

    def stop(self) -> None:
        """Look no more; may be called twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_message(self) -> None:
        """Note that a message came."""
        self._silent_beats = 0

    def on_running(self) -> None:
        """The process has started, and is silent no longer than a busy machine makes it."""
        self._limit = SILENT_BEATS

    def look(self) -> bool:
        """Count a look; returns whether the process has been silent for too long."""
        self._silent_beats += 1
        return self._silent_beats > self._limit

    @property
    def silent_s(self) -> float:
        """For how long nothing came."""
        return self._silent_beats * BEAT_S

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(BEAT_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self.look():
            self._on_silent()
        else:
            self._look_later()

    def __repr__(self) -> str:
        return f"<Heartbeat {self._silent_beats} of {self._limit} silent>"
