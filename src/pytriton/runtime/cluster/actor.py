# SPDX-License-Identifier: Apache-2.0
"""The actor around the process of an instance: our only code in processes of Ray's.

Only strings and numbers pass through Ray. An actor ends with its process, also if nobody asks for
it, and its process ends with the actor.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time

import msgspec
import ray

from pytriton.base.errors import ServerError
from pytriton.runtime.cluster.child import InstanceProcess, worker_command
from pytriton.runtime.executor.remote.starter import StartOrder
from pytriton.runtime.transport.handshake import pytriton_version

_START_S = 120.0  # an actor without a process for so long has lost its launcher
_ANSWER_S = 1.0  # for the answer to a pending `wait`
_REMOVAL_S = 5.0  # to tell Ray that the group is not needed any more


class ActorShell:
    """An actor of Ray; its methods run on its event loop. See `runtime.cluster.ray_cluster`."""

    def __init__(self) -> None:
        self._child: InstanceProcess | None = None
        self._reason = ""
        self._ended = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._node_id = str(ray.get_runtime_context().get_node_id())
        self._deadline = threading.Timer(_START_S, _leave)
        self._deadline.daemon = True
        self._deadline.start()

    async def where(self) -> tuple[str, str, str, int]:
        """Returns our version, the node's id and address, and a port that is free there."""
        address = str(ray.util.get_node_ip_address())
        return pytriton_version(), self._node_id, address, _free_port()

    async def start(self, order: str, rank: int, variables: dict[str, str]) -> tuple[int, str]:
        """Start the process of an order in JSON; returns its id, or 0 and the reason."""
        self._loop = asyncio.get_running_loop()
        try:
            pid = await asyncio.to_thread(self._start, order, rank, variables)
        except (ServerError, OSError, msgspec.MsgspecError) as error:
            return 0, str(error)  # the caller ends this actor, or the deadline does
        self._deadline.cancel()
        return pid, ""

    async def wait(self) -> str:
        """Returns how the process ended, when it has."""
        await self._ended.wait()
        return self._reason

    async def stop(self) -> None:
        """Kill the process, and all that it has started."""
        if self._child is not None:
            self._child.kill()

    def _start(self, order: str, rank: int, variables: dict[str, str]) -> int:
        decoded = msgspec.json.decode(order, type=StartOrder)
        command, environment = worker_command(decoded, self._node_id, rank)
        self._child = InstanceProcess(command, {**environment, **variables}, self._on_end)
        return self._child.start()

    def _on_end(self, reason: str) -> None:
        assert self._loop is not None
        self._reason = reason
        self._loop.call_soon_threadsafe(self._ended.set)
        time.sleep(_ANSWER_S)
        _leave()


def _leave() -> None:
    """End this actor, and the group that it is part of: one rank is of no use without the others.

    The launcher does the same, but it may be gone, as the server may be.
    """
    removal = threading.Thread(target=_remove_group, daemon=True)
    removal.start()
    removal.join(_REMOVAL_S)
    os._exit(0)


def _remove_group() -> None:
    group = ray.util.get_current_placement_group()
    if group is not None:
        ray.util.remove_placement_group(group)


def _free_port() -> int:
    # Of all addresses: the node's own may be one that only others see, behind a NAT for example.
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
