# SPDX-License-Identifier: Apache-2.0
"""Loopback ports that nothing listens on."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for item in sockets:
        item.bind(("127.0.0.1", 0))
    ports = [item.getsockname()[1] for item in sockets]
    for item in sockets:
        item.close()
    return ports


def first_of_free_ports(count: int) -> int:
    """A port that is free, as are those after it."""
    for _ in range(100):
        (first,) = free_ports(1)
        if all(map(_is_free, range(first, first + count))):
            return first
    raise RuntimeError(f"expected {count} free ports in a row, found none in 100 attempts")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
