# SPDX-License-Identifier: Apache-2.0
"""Usage: plain_copy.py PORT BYTES   takes, and gives back, as many bytes, over TCP and no more.

It is what large tensors are compared with: a process that connects to PORT, and for each message of
so many bytes answers with the byte in front of it, or, if that is ECHO, with all of them.
"""

from __future__ import annotations

import socket
import subprocess
import sys

ONE_WAY, ECHO = b"o", b"e"


class PlainCopy:
    """The caller's side; its process runs until `close`."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._answer = bytearray(len(data))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            command = [sys.executable, __file__, str(listener.getsockname()[1]), str(len(data))]
            self._process = subprocess.Popen(command)
            self._socket, _ = listener.accept()
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self) -> None:
        self._socket.sendall(ONE_WAY)
        self._socket.sendall(self._data)
        receive_all(self._socket, memoryview(self._answer)[:1])

    def echo(self) -> memoryview:
        self._socket.sendall(ECHO)
        self._socket.sendall(self._data)
        answer = memoryview(self._answer)
        receive_all(self._socket, answer)
        return answer

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


def receive_all(sock: socket.socket, into: memoryview) -> None:
    received = 0
    while received < len(into):
        count = sock.recv_into(into[received:])
        if count == 0:
            raise EOFError
        received += count


def main() -> None:
    port, size = map(int, sys.argv[1:])
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer, kind = memoryview(bytearray(size)), memoryview(bytearray(1))
        while True:
            try:
                receive_all(sock, kind)
                receive_all(sock, buffer)
            except EOFError:
                return
            sock.sendall(buffer if kind == ECHO else kind)


if __name__ == "__main__":
    main()
