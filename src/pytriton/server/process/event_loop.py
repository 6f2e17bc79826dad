# SPDX-License-Identifier: Apache-2.0
"""What every process that serves sets up for itself: event loop, memory, how it writes."""

from __future__ import annotations

import asyncio
import gc
import select
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytriton.dtypes import Buffer


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The fastest event loop of the platform."""
    try:
        import uvloop  # noqa: PLC0415  not on every platform
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def writer_of_parts(transport: Any) -> Callable[[list[Buffer]], None]:
    """What writes several buffers to a transport, without joining them where it can."""
    # From 3.12.0 to 3.13.1, `writelines` of Python's own transports does not tell when they are
    # full, and takes a closed socket's number for that of the connection.
    if type(transport).__module__ == "asyncio.selector_events":
        return lambda parts: transport.write(b"".join(parts))
    writer: Callable[[list[Buffer]], None] = transport.writelines
    return writer


def has_unread(transport: Any) -> bool:
    """Whether something came that the event loop has not read yet, if only the peer's end."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def freeze_memory() -> None:
    """Search what was imported and built so far for garbage now, and never again."""
    gc.collect()
    gc.freeze()
