# SPDX-License-Identifier: Apache-2.0
"""Entry of the server process that `Triton` starts: settings and models come over a socket."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
from typing import TYPE_CHECKING

from pytriton.errors import InternalError, InvalidArgumentError, ServerError
from pytriton.exceptions import PyTritonError
from pytriton.server.binder import BinderSession
from pytriton.server.binder_port import BinderPort
from pytriton.server.logs import set_up_logging
from pytriton.server.options import ServerOptions
from pytriton.server.process import freeze_memory, new_event_loop
from pytriton.server.process_watch import ProcessWatch
from pytriton.server.server import Server
from pytriton.server.serving_protocol import OpenPorts
from pytriton.server.startup import log_ports
from pytriton.transport.control import ControlLink, Done, Start, Started

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a server for the process that holds the other end of the control socket."""
    parser = argparse.ArgumentParser(prog="pytriton server process")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args(arguments)
    # A terminal sends SIGINT to the whole group; the parent decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    link = ControlLink(socket.socket(fileno=options.control_fd))
    try:
        start = link.receive()
    except EOFError:
        return
    assert isinstance(start, Start)
    new_event_loop().run_until_complete(_serve(link, start, options.parent))


async def _serve(link: ControlLink, start: Start, parent: int) -> None:
    loop = asyncio.get_running_loop()
    try:
        options = ServerOptions.from_triton_config(start.config)
        set_up_logging(options.log)
        server = Server(options, loop)
        await server.start()
        log_ports(OpenPorts(server.http_port, server.grpc_port, server.metrics_port), options)
    except (ServerError, PyTritonError, OSError) as error:
        link.send(_failure(error))
        return
    ended: asyncio.Future[bool] = loop.create_future()

    def end(is_orderly: bool) -> None:
        if not ended.done():
            ended.set_result(is_orderly)

    loop.add_signal_handler(signal.SIGTERM, end, True)
    session = BinderSession(link, server.engine, loop, server.cache, end)
    binder_port = BinderPort(server, loop)
    binder_port.start()
    _end_with_parent(loop, parent, end)
    session.start(Started(server.http_port, server.grpc_port, server.metrics_port))
    freeze_memory()
    if await ended:
        await server.stop(options.exit_timeout_s)
    await binder_port.stop()
    await session.close()


def _failure(error: ServerError | PyTritonError | OSError) -> Done:
    """What the parent hears of a start that failed."""
    if isinstance(error, ServerError):
        return Done(0, error.message, error.code)
    if isinstance(error, PyTritonError):  # a setting is wrong
        return Done(0, error.message, InvalidArgumentError.code)
    # For example a log file that cannot be written.
    return Done(0, f"the server cannot start: {error}", InternalError.code)


def _end_with_parent(
    loop: asyncio.AbstractEventLoop, parent: int, end: Callable[[bool], None]
) -> None:
    """End when the parent does, even if a child that it forked still holds the control socket."""
    if ProcessWatch(loop, parent, lambda: end(False)).start():
        return
    if os.getppid() != parent:
        end(False)
        return
    loop.call_later(1.0, _end_with_parent, loop, parent, end)


if __name__ == "__main__":
    main()
