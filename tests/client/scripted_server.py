# SPDX-License-Identifier: Apache-2.0
"""An HTTP server that answers what it is told to, connection by connection."""

from __future__ import annotations

import contextlib
import re
import socket
import threading

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class ScriptedServer:
    """Gives each connection its answers in order, one for each request, then closes it.

    `requests` has what it received, by connection.
    """

    def __init__(self, *connections: list[bytes]) -> None:
        self.requests: list[list[bytes]] = []
        self.closed = threading.Semaphore(0)  # released for every connection that was closed
        self._script = connections
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        for answers in self._script:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                self._answer(connection, answers)
            self.closed.release()

    def _answer(self, connection: socket.socket, answers: list[bytes]) -> None:
        received: list[bytes] = []
        self.requests.append(received)
        for answer in answers:
            request = _receive_request(connection)
            if not request:
                return
            received.append(request)
            connection.sendall(answer)


def _receive_request(connection: socket.socket) -> bytes:
    """A whole request, whose body may come after its head; empty at the end of the connection."""
    request = b""
    while data := connection.recv(65536):
        request += data
        head, separator, body = request.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        if separator and len(body) >= (int(length[1]) if length else 0):
            break
    return request
