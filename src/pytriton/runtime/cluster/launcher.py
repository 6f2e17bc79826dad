# SPDX-License-Identifier: Apache-2.0
"""The launcher process, the only one of a server that imports Ray.

Run as `python -m pytriton.runtime.cluster.launcher`. It ends its actors and exits when the server
closes the control socket, or ends.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING

from pytriton.runtime.cluster.actor_starts import ActorStarts
from pytriton.runtime.cluster.cluster import ClusterError
from pytriton.runtime.cluster.messages import (
    BEAT_S,
    TO_LAUNCHER,
    Beat,
    Connect,
    ConnectFailed,
    LauncherLink,
)
from pytriton.runtime.transport.zygote import set_process_title

if TYPE_CHECKING:
    from pytriton.runtime.cluster.cluster import Cluster
    from pytriton.runtime.cluster.messages import ToLauncher

logger = logging.getLogger(__name__)

_RAY = "pytriton.runtime.cluster.ray_cluster"
_CONNECT_S = 60.0
_CLOSE_S = 4.0  # for each step of the end
_LAST_S = 15.0  # after which the process ends, whatever Ray does


class LauncherProcess:
    """Connects the control socket with the actors."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_over = asyncio.Event()
        self._link = LauncherLink(sock, loop, TO_LAUNCHER, self._on_message, self._is_over.set)
        self._starts: ActorStarts | None = None
        self._connecting: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Follow the messages of the server until it is gone."""
        self._link.start()
        self._beat()
        await self._is_over.wait()
        threading.Timer(_LAST_S, os._exit, [1]).start()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._starts is not None:
            await self._starts.close(_CLOSE_S)

    def _beat(self) -> None:
        if not self._is_over.is_set():
            self._link.send(Beat())
            self._loop.call_later(BEAT_S, self._beat)

    def _on_message(self, message: ToLauncher) -> None:
        if isinstance(message, Connect):
            self._connecting = asyncio.ensure_future(self._connect(message))
        elif self._starts is not None:
            self._starts.obey(message)

    async def _connect(self, message: Connect) -> None:
        try:
            self._starts = ActorStarts(await asyncio.to_thread(_load_ray), self._link.send)
            await asyncio.wait_for(self._starts.connect(message), _CONNECT_S)
        except ClusterError as error:
            self._link.send(ConnectFailed(str(error)))
        except asyncio.TimeoutError:
            self._link.send(ConnectFailed(f"no answer within {_CONNECT_S:g} s"))
        except Exception as error:  # a bug here must not leave the server waiting
            logger.exception("unexpected error while connecting to the Ray cluster")
            self._link.send(ConnectFailed(f"{type(error).__name__}: {error}"))
        else:
            _ignore_signals()  # again, as Ray has handlers of its own
            return
        self._is_over.set()


def _load_ray() -> Cluster:
    """Import Ray only now, so that a broken installation of it can be reported.

    Raises:
        ClusterError: It cannot be imported.
    """
    try:
        module = importlib.import_module(_RAY)
    except Exception as error:  # packages of wrong versions raise all kinds of errors
        raise ClusterError(f"the package ray cannot be imported: {error}") from error
    logging.getLogger("ray").setLevel(logging.ERROR)  # it warns of threads that call it
    cluster: Cluster = module.RayCluster(_end_stuck)
    return cluster


def _end_stuck(call: str, seconds: float) -> None:
    """End this process, in which a call of Ray's does not return: the server starts another."""
    logger.error("%s has not returned for %g s; the launcher process ends", call, seconds)
    os._exit(1)


def _ignore_signals() -> None:
    """Leave it to the server when to end: these signals reach whole groups of processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def main(arguments: list[str] | None = None) -> None:
    """Serve the socket with the inherited descriptor `--control-fd`."""
    parser = argparse.ArgumentParser(prog="python -m pytriton.runtime.cluster.launcher")
    parser.add_argument("--control-fd", type=int, required=True, metavar="N")
    options = parser.parse_args(arguments)
    _ignore_signals()
    os.set_inheritable(options.control_fd, False)
    set_process_title("pytriton launcher")
    asyncio.run(_run(socket.socket(fileno=options.control_fd)))
    os._exit(0)  # threads that wait for a lost cluster keep nothing


async def _run(sock: socket.socket) -> None:
    await LauncherProcess(sock, asyncio.get_running_loop()).run()


if __name__ == "__main__":
    main()
