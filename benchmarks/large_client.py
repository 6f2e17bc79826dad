# SPDX-License-Identifier: Apache-2.0
"""Sends large tensors to the identity model over a raw socket, to measure no client library.

On its own: python -m benchmarks.large_client PORT MEBIBYTES
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
import time

import numpy as np


class LargeTensorClient:
    """One connection that sends the same binary tensor again and again and checks what returns."""

    def __init__(self, port: int, mebibytes: int, model: str = "Ident") -> None:
        self._model = model
        values = np.random.default_rng(0).random(mebibytes * 2**18, dtype=np.float32)
        self._payload = values.tobytes()
        self._head = self._request_head(values.size)
        self._answer = bytearray(len(self._payload) + 2**16)
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _request_head(self, elements: int) -> bytes:
        size = len(self._payload)
        x = {"name": "x", "shape": [1, elements], "datatype": "FP32"}
        document = {
            "inputs": [{**x, "parameters": {"binary_data_size": size}}],
            "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        }
        body = json.dumps(document).encode()
        lines = [
            f"POST /v2/models/{self._model}/infer HTTP/1.1",
            "Host: 127.0.0.1",
            "Content-Type: application/octet-stream",
            f"Inference-Header-Content-Length: {len(body)}",
            f"Content-Length: {len(body) + size}",
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    def call(self) -> memoryview:
        """One round trip; returns the tensor's bytes."""
        self._socket.sendall(self._head)
        self._socket.sendall(self._payload)
        received, end = 0, -1
        while end < 0:
            received += self._receive(received)
            end = self._answer.find(b"\r\n\r\n", 0, received)
        total = end + 4 + _content_length(bytes(self._answer[:end]))
        while received < total:
            received += self._receive(received)
        return memoryview(self._answer)[total - len(self._payload) : total]

    def check(self) -> None:
        if self.call() != self._payload:
            raise RuntimeError("the identity model returned other bytes than it was sent")

    def mebibytes_per_s(self, calls: int) -> float:
        """The median call's rate, both directions counted."""
        self.check()
        times = []
        for _ in range(calls):
            begin = time.perf_counter()
            self.call()
            times.append(time.perf_counter() - begin)
        return 2 * len(self._payload) / 2**20 / statistics.median(times)

    def close(self) -> None:
        self._socket.close()

    def _receive(self, offset: int) -> int:
        count = self._socket.recv_into(memoryview(self._answer)[offset:])
        if count == 0:
            raise ConnectionError(f"the server closed after {offset} bytes of its answer")
        return count


def _content_length(head: bytes) -> int:
    status, *lines = head.decode("latin-1").split("\r\n")
    if " 200" not in status:
        raise RuntimeError(f"expected status 200, got {status!r}")
    headers = dict(line.lower().split(":", 1) for line in lines)
    return int(headers["content-length"])


def measure(port: int, mebibytes: int, calls: int, model: str = "Ident") -> float:
    client = LargeTensorClient(port, mebibytes, model)
    try:
        return client.mebibytes_per_s(calls)
    finally:
        client.close()


if __name__ == "__main__":
    print(f"{measure(int(sys.argv[1]), int(sys.argv[2]), 30):.0f} MiB/s")
