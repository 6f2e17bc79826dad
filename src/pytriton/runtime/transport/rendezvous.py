# SPDX-License-Identifier: Apache-2.0
"""Addresses by which processes find a server: binders by its port, workers by their own port.

Binders are on the server's machine. On Linux their socket has an abstract name, in the same network
namespace as the port: there is no file to protect or to leave behind. On other systems it is a file
in a folder that only its user can enter. In both cases both ends check that the other belongs to
the same user.

Workers get an address as text: `tcp:HOST:PORT` is for all machines; `unix:@NAME` (an abstract name,
on Linux) and `unix:PATH` are for processes of the same machine and user.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import socket
import stat
import struct
import sys
from typing import TYPE_CHECKING

from pytriton.base.lazy_module import LazyModule
from pytriton.runtime.transport.memory import is_portable_forced

if TYPE_CHECKING:
    import tempfile
else:  # on Linux nothing needs it
    tempfile = LazyModule("tempfile")

_BACKLOG = 128
_CREDENTIALS = struct.Struct("3i")  # process, user, group
# The variable of a worker's environment that has the token of its start.
TOKEN_VARIABLE = "PYTRITON_WORKER_TOKEN"  # noqa: S105  the name is no secret
# The exit status of a worker that has lost its connection, or what had started it.
CONNECTION_LOST = 75
_TCP = "tcp:"
_UNIX = "unix:"
_ABSTRACT = "@"


def _has_abstract_names() -> bool:
    return sys.platform == "linux" and not is_portable_forced()


def _folder() -> pathlib.Path:
    return pathlib.Path(tempfile.gettempdir()) / f"pytriton-{os.geteuid()}"


def _address(port: int) -> str:
    if _has_abstract_names():
        return f"\0pytriton/{os.geteuid()}/{port}"
    return str(_folder() / f"{port}.sock")


def _check_folder() -> None:
    """Check the folder: its owner could listen in it, or redirect it with a link."""
    status = _folder().lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if not is_ours or status.st_mode & 0o077:
        raise PermissionError(f"{_folder()} must be a folder that belongs to this user alone")


def listen(port: int) -> socket.socket:
    """Returns a socket that processes of this user find by the server's port.

    Raises:
        OSError: Another server uses that port already, or the folder is not safe.
    """
    if not _has_abstract_names():
        _folder().mkdir(mode=0o700, exist_ok=True)
        _check_folder()
        _remove_stale_socket(port)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(_address(port))
    except OSError:
        sock.close()
        raise
    sock.listen(_BACKLOG)
    return sock


def _remove_stale_socket(port: int) -> None:
    """Remove the socket file of a server that was killed, but not of one that is running."""
    # Only a listener can accept: the file of a killed server refuses.
    with contextlib.suppress(ConnectionRefusedError):
        connect(port, 1.0).close()
        raise OSError(errno.EADDRINUSE, f"another server has {_address(port)}")
    pathlib.Path(_address(port)).unlink(missing_ok=True)


def stop_listening(sock: socket.socket, port: int) -> None:
    """Close the socket of `listen`."""
    if not _has_abstract_names():
        pathlib.Path(_address(port)).unlink(missing_ok=True)
    sock.close()


def connect(port: int, timeout_s: float) -> socket.socket:
    """Returns a connection to the server of this user that serves a port.

    Raises:
        ConnectionRefusedError: There is no such server.
        BlockingIOError: Too many other processes are connecting.
        PermissionError: A process of another user listens there, or could.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout_s)
    try:
        if not _has_abstract_names():
            _check_folder()
        sock.connect(_address(port))
        # Abstract names have no permissions: any user may have taken this one first.
        if not is_same_user(sock):
            raise PermissionError(f"the server at port {port} belongs to another user")
    except FileNotFoundError as error:
        sock.close()
        raise ConnectionRefusedError(f"no server of this user serves port {port}") from error
    except OSError:
        sock.close()
        raise
    sock.settimeout(None)  # it was for the connection only
    return sock


def ports_of_user() -> list[int]:
    """Returns the ports of servers of this user, as far as the system tells them."""
    if _has_abstract_names():
        prefix = f"@{_address(0)[1:].rpartition('/')[0]}/"
        try:
            lines = pathlib.Path("/proc/net/unix").read_text(errors="replace").splitlines()
        except OSError:
            return []
        names = [line.rpartition(prefix)[2] for line in lines if prefix in line]
    else:
        names = [path.stem for path in _folder().glob("*.sock")]
    return sorted({int(name) for name in names if name.isdecimal()})


def is_local(host: str) -> bool:
    """Returns whether a host name or address is one of this machine's."""
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, _, _, _, address in addresses:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(address)  # the system allows that only for its own addresses
            except OSError:
                continue
            return True
    return False


def is_same_user(sock: socket.socket) -> bool:
    """Returns whether the process at the other end belongs to this user."""
    # The kernel has recorded who connected or listened, so a process cannot lie about it.
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the folder's permissions ensure it
    return _peer(sock)[1] == os.geteuid()


def peer_process(sock: socket.socket) -> int:
    """Returns the process id of the other end; 0 if this process cannot see it."""
    return _peer(sock)[0] if hasattr(socket, "SO_PEERCRED") else 0


def _peer(sock: socket.socket) -> tuple[int, int, int]:
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, group = _CREDENTIALS.unpack(data)
    return process, user, group


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
