# SPDX-License-Identifier: Apache-2.0
"""Sockets between simulated processes, and those that clients connect to."""

from __future__ import annotations

import array
import errno
import os as real_os
import socket as real_socket
import struct
import types
from collections.abc import Callable, Sequence
from typing import Any

from tests.simulation.files import (
    STREAM_BYTES,
    File,
    ListenerFile,
    PacketFile,
    SocketFile,
    TcpFile,
    connect,
    open_in,
    system_error,
)
from tests.simulation.machine import Machine
from tests.simulation.stand_in import SYSTEM_CALL_NS, StandIn, deadline

_CONTROL_HEAD_BYTES = real_socket.CMSG_LEN(0)
_TRUNCATED, _CONTROL_TRUNCATED = int(real_socket.MSG_TRUNC), int(real_socket.MSG_CTRUNC)
_MOST_FILES = 253  # of one message
_LEAST_BUFFER_BYTES = 4608
_SCM = (real_socket.SOL_SOCKET, real_socket.SCM_RIGHTS)


class Socket:
    machine: Machine  # of a subclass that belongs to a machine

    def __init__(
        self,
        family: int = real_socket.AF_INET,
        type: int = real_socket.SOCK_STREAM,  # noqa: A002  the name of the real one
        proto: int = 0,
        fileno: int | None = None,
    ) -> None:
        if fileno is None:
            number = self.machine.next_number()
            fileno = self.machine.process.open(ListenerFile(self.machine, f"listener {number}"))
        self._descriptor = fileno
        self.file = self.machine.file_of(fileno)
        self._files = self.machine.process_of(fileno).files
        self.family = family
        self.timeout: float | None = None

    @property
    def type(self) -> int:
        if isinstance(self.file, PacketFile):
            return real_socket.SOCK_SEQPACKET
        return real_socket.SOCK_STREAM

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            process = self.machine.process_of(descriptor)
            if not process.is_over:  # or all was closed already
                process.close(descriptor)

    def detach(self) -> int:
        descriptor, self._descriptor = self._descriptor, -1
        return descriptor

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) in getattr(self, "_files", ()):
            self.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def setblocking(self, blocking: bool) -> None:
        self.settimeout(None if blocking else 0.0)

    def settimeout(self, timeout: float | None) -> None:
        self.timeout = timeout
        self._open_file().is_blocking = timeout is None

    def gettimeout(self) -> float | None:
        return self.timeout

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        file = self._open_file()
        if (level, option) == (real_socket.SOL_SOCKET, real_socket.SO_SNDBUF):
            peer = getattr(file, "peer", None)
            if peer is not None:
                peer.capacity = max(2 * value, _LEAST_BUFFER_BYTES)

    def getsockopt(self, level: int, option: int, size: int = 0) -> Any:
        file = self._open_file()
        if level != real_socket.SOL_SOCKET:
            return 0
        if option == real_socket.SO_TYPE:
            return self.type
        if option == real_socket.SO_SNDBUF:
            peer = getattr(file, "peer", None)
            return STREAM_BYTES if peer is None else peer.capacity
        if option == real_socket.SO_ERROR and file.is_reset:
            file.is_reset = False
            return errno.ECONNRESET
        if option == getattr(real_socket, "SO_PEERCRED", -1):
            return struct.pack("3i", self.machine.process.pid, real_os.geteuid(), 0)
        return 0

    def _open_file(self) -> Any:
        file = self._files.get(self._descriptor)
        if file is None:
            raise system_error(errno.EBADF)
        self.machine.now_ns += SYSTEM_CALL_NS
        return file

    def _may_wait(self, flags: int = 0) -> bool:
        if self.timeout is not None:
            return self.timeout > 0
        return self.file.is_blocking and not flags & real_socket.MSG_DONTWAIT

    def send(self, data: Any, flags: int = 0) -> int:
        return self._send(data, (), flags)

    def sendmsg(
        self, buffers: Sequence[Any], ancillary: Sequence[Any] = (), flags: int = 0, *_: object
    ) -> int:
        files = []
        for _level, _kind, data in ancillary:
            numbers = array.array("i")
            numbers.frombytes(bytes(data))
            files += [self.machine.file_of(number) for number in numbers]
        if len(files) > _MOST_FILES:
            raise system_error(errno.EINVAL)
        data = buffers[0] if len(buffers) == 1 else b"".join(buffers)
        return self._send(data, tuple(files), flags)

    def _send(self, data: Any, files: tuple[File, ...], flags: int) -> int:
        file = self._open_file()
        data = memoryview(data).cast("B") if not isinstance(data, bytes) else data
        self.machine.pause_between_calls()
        while True:
            try:
                return file.send(data, files)
            except BlockingIOError:  # noqa: PERF203  it waits then
                if not self._may_wait(flags):
                    raise
                self._wait(lambda: file.is_writable)

    def _wait(self, is_ready: Callable[[], bool]) -> None:
        deadline_ns = deadline(self.machine, self.timeout)
        if not self.file.wait(is_ready, deadline_ns):
            raise TimeoutError("timed out")

    def sendall(self, data: Any, flags: int = 0) -> None:
        data = memoryview(data).cast("B")
        while len(data):
            data = data[self._send(data, (), flags) :]

    def _receive(self, size: int, flags: int) -> tuple[bytes, tuple[File, ...]]:
        file = self._open_file()
        self.machine.pause_between_calls()
        while True:
            try:
                return file.receive(size)
            except BlockingIOError:  # noqa: PERF203  it waits then
                if not self._may_wait(flags):
                    raise
                self._wait(lambda: file.is_readable)

    def recv(self, size: int, flags: int = 0) -> bytes:
        data, files = self._receive(size, flags)
        for file in files:
            file.release()
        return data

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0) -> int:
        view = memoryview(buffer).cast("B")
        data = self.recv(size or len(view), flags)
        view[: len(data)] = data
        return len(data)

    def recvmsg_into(
        self, buffers: Sequence[Any], ancillary_size: int = 0, flags: int = 0
    ) -> tuple[int, list[tuple[int, int, bytes]], int, Any]:
        views = [memoryview(each).cast("B") for each in buffers]
        data, files = self._receive(sum(len(each) for each in views), flags)
        at = 0
        for view in views:
            size = min(len(view), len(data) - at)
            view[:size] = data[at : at + size]
            at += size
        ancillary, told = self._take_files(files, ancillary_size)
        return len(data), ancillary, told, None

    def recvmsg(
        self, size: int, ancillary_size: int = 0, flags: int = 0
    ) -> tuple[bytes, list[tuple[int, int, bytes]], int, Any]:
        data, files = self._receive(size, flags)
        ancillary, told = self._take_files(files, ancillary_size)
        return data, ancillary, told, None

    def _take_files(
        self, files: tuple[File, ...], ancillary_size: int
    ) -> tuple[list[tuple[int, int, bytes]], int]:
        told = _TRUNCATED if self.file.is_cut else 0
        if not files:
            return [], told
        process = self.machine.process_of(self._descriptor)
        limit = max(0, ancillary_size - _CONTROL_HEAD_BYTES) // 4
        descriptors, is_truncated = open_in(process, files, limit)
        if is_truncated:
            told |= _CONTROL_TRUNCATED
        if not descriptors:
            return [], told
        return [(*_SCM, array.array("i", descriptors).tobytes())], told

    def shutdown(self, how: int) -> None:
        file = self._open_file()
        if not isinstance(file, SocketFile):
            raise system_error(errno.ENOTCONN)
        file.check_connected()
        if how != real_socket.SHUT_RD:
            file.shut_down()
        if how != real_socket.SHUT_WR:
            file.stop_receiving()

    # Listening

    def bind(self, address: Any) -> None:
        file = self._open_file()
        if isinstance(address, tuple):
            port = address[1] or 10_000 + self.machine.next_number()
            if port in self.machine.listeners:
                raise system_error(errno.EADDRINUSE)
            file.address = (address[0], port)
        else:
            file.address = (address, address)

    def listen(self, backlog: int = 128) -> None:
        file = self._open_file()
        file.backlog = backlog
        self.machine.listeners[file.address[1]] = file

    def accept(self) -> tuple[Socket, Any]:
        file = self._open_file()
        while not file.waiting:
            if not self._may_wait():
                raise BlockingIOError(errno.EAGAIN, real_os.strerror(errno.EAGAIN))
            self._wait(lambda: file.is_readable)
        process = self.machine.process_of(self._descriptor)
        descriptor = process.open(file.waiting[0])  # raises while it stays in the queue
        accepted = file.waiting.popleft()
        accepted.release()
        return self.__class__(fileno=descriptor), ("127.0.0.1", 40_000)

    def connect(self, address: Any) -> None:
        machine, process = self.machine, self.machine.process_of(self._descriptor)
        self._open_file()
        is_tcp = isinstance(address, tuple)
        listener = machine.listeners.get(address[1] if is_tcp else address)
        if listener is None or len(listener.waiting) > listener.backlog:
            raise ConnectionRefusedError(errno.ECONNREFUSED, real_os.strerror(errno.ECONNREFUSED))
        kind, number = TcpFile if is_tcp else SocketFile, machine.next_socket()
        here, there = connect(machine, kind(machine, f"{number}a"), kind(machine, f"{number}b"))
        here.is_blocking = self.file.is_blocking
        here.references, self.file.references = self.file.references, 0
        process.files[self._descriptor] = self.file = here
        there.references += 1  # of the queue
        listener.waiting.append(there)
        listener.changed()

    def getsockname(self) -> Any:
        return getattr(self.file, "address", ("127.0.0.1", 1))

    def getpeername(self) -> Any:
        return ("127.0.0.1", 40_000)

    def __repr__(self) -> str:
        return f"<Socket {self._descriptor} {self.file!r}>"


class BorrowedSocket(Socket):
    def __init__(self, machine: Machine, descriptor: int) -> None:
        self.machine = machine
        super().__init__(fileno=descriptor)

    def __del__(self) -> None:
        """It is not closed."""


class SocketModule(StandIn):
    def __init__(self, real: types.ModuleType, machine: Machine) -> None:
        super().__init__(real, machine)
        self.socket = type("socket", (Socket,), {"machine": machine})

    def socketpair(
        self,
        family: int = real_socket.AF_UNIX,
        type: int = real_socket.SOCK_STREAM,  # noqa: A002
        proto: int = 0,
    ) -> tuple[Socket, Socket]:
        machine = self.machine
        kind = PacketFile if type == real_socket.SOCK_SEQPACKET else SocketFile
        number = machine.next_socket()
        ends = connect(machine, kind(machine, f"{number}a"), kind(machine, f"{number}b"))
        first = machine.process.open(ends[0])
        try:
            second = machine.process.open(ends[1])
        except OSError:
            machine.process.close(first)
            raise
        return self.socket(fileno=first), self.socket(fileno=second)

    def send_fds(self, sock: Socket, buffers: Sequence[Any], fds: Sequence[int], *_: object) -> int:
        return sock.sendmsg(buffers, [(*_SCM, array.array("i", fds))])

    def recv_fds(
        self, sock: Socket, size: int, maxfds: int, flags: int = 0
    ) -> tuple[bytes, list[int], int, Any]:
        data, ancillary, told, _ = sock.recvmsg(size, _CONTROL_HEAD_BYTES + 4 * maxfds, flags)
        numbers = array.array("i")
        for _level, _kind, part in ancillary:
            numbers.frombytes(part)
        return data, list(numbers), told, None
