# SPDX-License-Identifier: Apache-2.0
"""Addresses of the port of instances, as text, and connections to them.

`tcp:HOST:PORT` is for all machines. `unix:@NAME` (an abstract name, on Linux) and `unix:PATH` are
for processes of the same machine and user.
"""

from __future__ import annotations

import socket

from pytriton.runtime.transport.rendezvous import is_same_user

# The variable of a worker's environment that has the token of its start.
TOKEN_VARIABLE = "PYTRITON_WORKER_TOKEN"  # noqa: S105  the name is no secret
# The exit status of a worker that has lost its connection, or what had started it.
CONNECTION_LOST = 75
_TCP = "tcp:"
_UNIX = "unix:"
_ABSTRACT = "@"


def tcp_address(host: str, port: int) -> str:
    """Returns the address of a TCP port as text."""
    return f"{_TCP}[{host}]:{port}" if ":" in host else f"{_TCP}{host}:{port}"


def unix_address(name: str) -> str:
    """Returns the address of a Unix socket as text; an abstract name begins with a zero byte."""
    return _UNIX + (f"{_ABSTRACT}{name[1:]}" if name.startswith("\0") else name)


def connect_to_address(address: str, timeout_s: float) -> socket.socket:
    """Returns a connection to an address, with this timeout.

    Raises:
        OSError: Nobody listens there, or a process of another user.
        ValueError: This is no address.
    """
    if address.startswith(_UNIX):
        return _connect_unix(address.removeprefix(_UNIX), timeout_s)
    host, separator, port = address.removeprefix(_TCP).rpartition(":")
    if not address.startswith(_TCP) or not separator or not port.isdecimal():
        raise ValueError(f"expected 'unix:NAME' or 'tcp:HOST:PORT', got '{address}'")
    return socket.create_connection((host.strip("[]"), int(port)), timeout_s)


def _connect_unix(name: str, timeout_s: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(f"\0{name[1:]}" if name.startswith(_ABSTRACT) else name)
        is_trusted = is_same_user(sock)
    except BaseException:
        sock.close()
        raise
    if not is_trusted:
        sock.close()
        raise PermissionError("a process of another user listens there")
    return sock
