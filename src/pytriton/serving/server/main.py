# SPDX-License-Identifier: Apache-2.0
"""Entry point of the server process that `Triton` starts; it gets its settings over a socket."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from pytriton.base.errors import InternalError, InvalidArgumentError, ServerError
from pytriton.exceptions import PyTritonError
from pytriton.runtime.transport.control import CallDone, ControlLink, ServerStart
from pytriton.runtime.transport.loop_spinner import allow_spinning
from pytriton.serving.server.binding.binder import BinderSession
from pytriton.serving.server.binding.binder_port import BinderPort
from pytriton.serving.server.command.lifecycle import OpenPorts
from pytriton.serving.server.command.startup import log_ports
from pytriton.serving.server.core import Core
from pytriton.serving.server.options.endpoints import Surroundings
from pytriton.serving.server.options.server_options import ServerOptions
from pytriton.serving.server.process.event_loop import (
    ProcessWatch,
    end_process,
    freeze_memory,
    new_event_loop,
)
from pytriton.serving.server.process.kept_lines import LogRing
from pytriton.serving.server.process.logs import keep_lines, set_up_logging
from pytriton.serving.server.process.resources import (
    open_missing_streams,
    raise_limit,
    usable_cores,
)
from pytriton.serving.server.server import NetworkServer, authorizations, prepare_front_ends

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pytriton.runtime.executor.python_process import StartedZygote

    StartServer = Callable[..., Awaitable["OpenServer"]]

logger = logging.getLogger(__name__)


class OpenServer(Protocol):
    """A server whose ports are open."""

    @property
    def core(self) -> Core:
        """Its models."""

    @property
    def server(self) -> NetworkServer:
        """Its ports."""

    async def stop(self, timeout_s: float) -> object:
        """Refuse new requests, finish those in flight, stop everything."""

    async def abandon(self) -> None:
        """Stop at once: the parent process has ended."""


class BoundServing:
    """A server with bound models only."""

    def __init__(
        self,
        options: ServerOptions,
        loop: asyncio.AbstractEventLoop,
        zygote: StartedZygote | None = None,
    ) -> None:
        self.core = core = Core(options, loop)
        self.server = NetworkServer(core, options, loop, zygote)
        self._loop = loop
        self._binder_port = BinderPort(
            core.engine, core.instances, authorizations(options), core.load_function
        )

    async def start(self) -> None:
        """Listen for clients, and for processes that want to bind models."""
        self.core.start()
        await self.server.start()
        self._binder_port.start(self.server.ports, self.server.access)

    async def stop(self, timeout_s: float) -> None:
        """See `OpenServer`."""
        end = self._loop.time() + timeout_s
        self._binder_port.stop_listening()
        self.server.refuse_requests()
        await self.core.end_models(timeout_s)
        await self.server.end_connections(end - self._loop.time())
        await self.core.close(end - self._loop.time())
        await self._binder_port.stop()

    async def abandon(self) -> None:
        """See `OpenServer`."""
        await self._binder_port.stop()


async def start_bound_serving(
    options: ServerOptions,
    loop: asyncio.AbstractEventLoop,
    zygote: StartedZygote | None = None,
) -> BoundServing:
    """Start a server without repositories."""
    serving = BoundServing(options, loop, zygote)
    await serving.start()
    return serving


def main(
    arguments: Sequence[str] | None = None, start_server: StartServer = start_bound_serving
) -> None:
    """Run a server for the process that holds the other end of the control socket."""
    raise_limit()
    open_missing_streams()
    control_descriptor, parent = _read(sys.argv[1:] if arguments is None else arguments)
    # A terminal sends SIGINT to the whole process group; the parent decides when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    link = ControlLink(socket.socket(fileno=control_descriptor))
    try:
        start = link.receive()
    except EOFError:
        return
    assert isinstance(start, ServerStart)
    try:
        settings = msgspec.structs.replace(
            ServerOptions.from_triton_config(
                start.config, surroundings=Surroundings.read(usable_cores())
            ),
            awaits_models=start.awaits_models,
        )
        set_up_logging(settings.log)
        if settings.has_page:
            keep_lines(LogRing(), settings.log.switches)
    except (PyTritonError, OSError) as error:
        link.send(_failure(error))
        return
    zygote = prepare_front_ends(settings)
    serving = _serve(link, settings, parent, partial(start_server, zygote=zygote))
    allow_spinning(usable_cores())
    new_event_loop().run_until_complete(serving)
    end_process(0)


def _read(arguments: Sequence[str]) -> tuple[int, int]:
    """Returns the values of the two arguments; argparse would take 6 ms of the start."""
    values = dict(zip(arguments[::2], arguments[1::2], strict=True))
    return int(values["--control-fd"]), int(values["--parent"])


async def _serve(
    link: ControlLink, options: ServerOptions, parent: int, start_server: StartServer
) -> None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[bool] = loop.create_future()

    def end(is_orderly: bool) -> None:
        if not ended.done():
            ended.set_result(is_orderly)

    loop.add_signal_handler(signal.SIGTERM, end, True)
    if any(options.uses_tls):  # it means certificates; the parent ends with its terminal
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _end_with_parent(loop, parent, end)
    try:
        serving = await _start_unless_ended(start_server(options, loop), ended)
    except (ServerError, PyTritonError, OSError) as error:
        link.send(_failure(error))
        return
    if serving is None:
        return
    if any(options.uses_tls):
        loop.add_signal_handler(signal.SIGHUP, serving.server.reload_certificates)
    ports = serving.server.ports
    open_ports = OpenPorts(
        ports.http_port, ports.grpc_port, ports.metrics_port, *serving.server.cloud_ports
    )
    log_ports(open_ports, options)
    core = serving.core
    session = BinderSession(link, core.engine, core.instances, end, core.load_function)
    session.start(ports)
    freeze_memory()
    if await ended:
        await serving.stop(options.exit_timeout_s)
    else:
        await serving.abandon()
    await session.close()


async def _start_unless_ended(
    starting: Awaitable[OpenServer], ended: asyncio.Future[bool]
) -> OpenServer | None:
    """Returns the started server; None if it should end before, since loading may take long."""
    task = asyncio.ensure_future(starting)
    ends: set[asyncio.Future[Any]] = {task, ended}
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.wait({task})
    return None


def _failure(error: ServerError | PyTritonError | OSError) -> CallDone:
    """Returns the message to the parent about a failed start."""
    if isinstance(error, ServerError):
        return CallDone(0, error.message, error.code)
    if isinstance(error, PyTritonError):  # a setting is wrong
        return CallDone(0, error.message, InvalidArgumentError.code)
    # For example a log file that cannot be written.
    return CallDone(0, f"the server cannot start: {error}", InternalError.code)


def _end_with_parent(
    loop: asyncio.AbstractEventLoop, parent: int, end: Callable[[bool], None]
) -> None:
    """Stop when the parent ends, even if a child of it still holds the control socket open."""
    if ProcessWatch(loop, parent, lambda: end(False)).start():
        return
    if os.getppid() != parent:
        end(False)
        return
    loop.call_later(1.0, _end_with_parent, loop, parent, end)


if __name__ == "__main__":
    main()
