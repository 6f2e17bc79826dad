# SPDX-License-Identifier: Apache-2.0
"""Listening sockets for instances: on TCP, and for processes of this machine."""

from __future__ import annotations

import contextlib
import pathlib
import secrets
import shutil
import socket
import sys
import tempfile

from pytriton.runtime.transport.memory import is_portable_forced
from pytriton.runtime.transport.rendezvous import is_local, unix_address

_BACKLOG = 512


def listen_tcp(host: str, port: int) -> socket.socket:
    """Returns a socket that listens on an address, or on all if it is not of this machine.

    Raises:
        OSError: The port is in use, or the address is unknown.
    """
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    where = address[0] if is_local(host) else ""  # "": all
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A server that is started again must not wait for the old connections to be forgotten.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((where, port))
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


class PrivateListener:
    """A Unix socket with a name that nobody can guess, for processes of this user.

    Raises:
        OSError: There can be none.
    """

    def __init__(self) -> None:
        self._folder: pathlib.Path | None = None
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            name = self._choose_name()
            self.address = unix_address(name)
            self.socket.bind(name)
            self.socket.listen(_BACKLOG)
            self.socket.setblocking(False)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the socket, and remove its file."""
        self.socket.close()
        if self._folder is not None:
            with contextlib.suppress(OSError):
                shutil.rmtree(self._folder)

    def __repr__(self) -> str:
        return f"<PrivateListener {self.address}>"

    def _choose_name(self) -> str:
        if sys.platform == "linux" and not is_portable_forced():
            return f"\0pytriton-instances/{secrets.token_hex(8)}"
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="pytriton-"))  # for this user only
        return str(self._folder / "s")
