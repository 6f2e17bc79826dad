# SPDX-License-Identifier: Apache-2.0
"""Passes the sockets of accepted clients from the core to a front end, over a socket of its own."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from pytriton.serving.server.api.services import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_CLIENTS = 64  # that a front end takes in one iteration of its event loop


def pass_client(link: socket.socket, service: Service, client: socket.socket) -> bool:
    """Pass a client on; returns False if the front end does not take it now, or has ended."""
    try:
        socket.send_fds(link, [service.value], [client.fileno()])
    except OSError:
        return False
    return True


def receive_clients(link: socket.socket) -> Iterator[tuple[Service, socket.socket | None]]:
    """Yields the clients that wait, up to a limit; ends early if the core has closed the link.

    A client is None if this process had no free descriptor for it; the system has closed it then.
    """
    for _ in range(_MAX_CLIENTS):
        try:
            letter, descriptors, _, _ = socket.recv_fds(link, 1, 1)
        except (BlockingIOError, ConnectionResetError):
            return
        if not letter:
            return
        client = socket.socket(fileno=descriptors[0]) if descriptors else None
        yield Service(letter), client
