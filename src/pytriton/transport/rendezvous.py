# SPDX-License-Identifier: Apache-2.0
"""Where a process that wants to bind models finds a server on the same machine: by its port.

On Linux the socket has an abstract name, in the same network namespace as the port: there is no
file to protect or to leave behind. Elsewhere it is a file in a folder that only its user can enter.
Either way both ends check that the other belongs to the same user.
"""

from __future__ import annotations

import os
import pathlib
import socket
import struct
import sys
import tempfile

from pytriton.transport.memory import is_portable_forced

_BACKLOG = 16
_CREDENTIALS = struct.Struct("3i")  # process, user, group


def _has_abstract_names() -> bool:
    return sys.platform == "linux" and not is_portable_forced()


def _folder() -> pathlib.Path:
    return pathlib.Path(tempfile.gettempdir()) / f"pytriton-{os.getuid()}"


def _address(port: int) -> str:
    if _has_abstract_names():
        return f"\0pytriton/{os.getuid()}/{port}"
    return str(_folder() / f"{port}.sock")


def listen(port: int) -> socket.socket:
    """A socket that processes of this user find by the server's port."""
    if not _has_abstract_names():
        folder = _folder()
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise PermissionError(f"{folder} must belong to this user alone")
        # Left by a server that was killed: the port is ours now, so nobody answers there.
        pathlib.Path(_address(port)).unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(_address(port))
    except OSError:
        sock.close()
        raise
    sock.listen(_BACKLOG)
    return sock


def stop_listening(sock: socket.socket, port: int) -> None:
    """Close the socket of `listen`."""
    sock.close()
    if not _has_abstract_names():
        pathlib.Path(_address(port)).unlink(missing_ok=True)


def connect(port: int, timeout_s: float) -> socket.socket:
    """A connection to the server of this user that serves a port.

    Raises:
        ConnectionError: There is none.
        PermissionError: Another user's process answers there.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout_s)
    try:
        sock.connect(_address(port))
    except FileNotFoundError as error:
        sock.close()
        raise ConnectionRefusedError(f"no server of this user serves port {port}") from error
    except OSError:
        sock.close()
        raise
    if not is_same_user(sock):
        sock.close()
        raise PermissionError(f"the server at port {port} belongs to another user")
    sock.settimeout(None)
    return sock


def is_local(host: str) -> bool:
    """Whether a host name or address is one of this machine's."""
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, _, _, _, address in addresses:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(address)  # the system allows that for its own addresses only
            except OSError:
                continue
            return True
    return False


def is_same_user(sock: socket.socket) -> bool:
    """Whether the process at the other end belongs to this user."""
    if hasattr(socket, "SO_PEERCRED"):
        data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return bool(_CREDENTIALS.unpack(data)[1] == os.getuid())
    return True  # the folder's permissions have settled it
