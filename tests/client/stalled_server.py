# SPDX-License-Identifier: Apache-2.0
"""Servers that let their clients wait, each at another point of an exchange."""

from __future__ import annotations

import contextlib
import socket
import threading

# Of an error, because a client that waits may take the head of a good answer for all it needs.
HALF_HTTP_ANSWER = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 1000\r\n\r\n{"
# An empty SETTINGS frame: the connection is good, but no answer comes over it.
HALF_GRPC_ANSWER = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
GRPC_PING = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + bytes(8)
TRICKLE_S = 0.02


class StalledServer:
    """Listens on loopback; what it does then is its kind.

    - "silent" reads everything and answers nothing;
    - "half" answers the beginning of an answer;
    - "trickling" goes on for ever, a little at a time;
    - "deaf" reads nothing, so that a large request cannot be sent;
    - "unreachable" does not even accept connections.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._listener = socket.socket()
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def url(self, scheme: str) -> str:
        return f"{scheme}://127.0.0.1:{self.port}"

    def __enter__(self) -> StalledServer:  # noqa: PYI034  Self came with 3.11
        if self.kind == "deaf":
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(0 if self.kind == "unreachable" else 16)
        if self.kind == "unreachable":
            self._fill_backlog()
        else:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if self._thread.ident is not None:
            self._thread.join()  # now there are no more connections
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _fill_backlog(self) -> None:
        """A system drops attempts to connect once enough are waiting to be accepted."""
        for _ in range(8):
            connection = socket.socket()
            connection.setblocking(False)
            connection.connect_ex(self._listener.getsockname())
            self._connections.append(connection)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self.kind == "deaf":
                return
            received = connection.recv(65536)
            is_http2 = received.startswith(b"PRI ")
            if self.kind in ("half", "trickling"):
                connection.sendall(HALF_GRPC_ANSWER if is_http2 else HALF_HTTP_ANSWER)
            if self.kind == "trickling":
                connection.settimeout(TRICKLE_S)
            self._read_on(connection, GRPC_PING if is_http2 else b"x")

    def _read_on(self, connection: socket.socket, trickle: bytes) -> None:
        while True:
            try:
                if not connection.recv(65536):
                    return
            except TimeoutError:  # noqa: PERF203  it is what the loop is for
                connection.sendall(trickle)
