# SPDX-License-Identifier: Apache-2.0
"""A client for very many small requests: pipelines on several connections, in one thread."""

from __future__ import annotations

import collections
import re
import selectors
import socket

from tests.e2e.waiting import DEADLINE_S

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_LONGEST_STATUS = len(b"HTTP/1.1 200 ")


class _Pipeline:
    """One connection, and how many of its requests are not answered."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        self.open_requests = 0
        self._tail = b""

    def send(self, requests: list[bytes]) -> None:
        self.socket.sendall(b"".join(requests))
        self.open_requests = len(requests)

    def receive(self) -> list[bytes]:
        """The statuses that came; one may arrive in two pieces."""
        data = self._tail + self.socket.recv(1 << 18)
        found = list(_STATUS.finditer(data))
        at = found[-1].end() if found else 0
        self._tail = data[max(at, len(data) - _LONGEST_STATUS) :]
        self.open_requests -= len(found)
        return [match[1] for match in found]


def flood(
    port: int, requests: list[bytes], count: int, connections: int = 8
) -> collections.Counter[int]:
    """Send the list of requests again and again, `count` in all; how often each status came."""
    assert count % len(requests) == 0
    statuses: collections.Counter[bytes] = collections.Counter()
    rounds = count // len(requests)
    with selectors.DefaultSelector() as selector:
        for pipeline in [_Pipeline(port) for _ in range(min(connections, rounds))]:
            selector.register(pipeline.socket, selectors.EVENT_READ, pipeline)
            pipeline.send(requests)
            rounds -= 1
        while selector.get_map():
            ready = selector.select(DEADLINE_S)
            assert ready, "no answer before the deadline"
            for key, _ in ready:
                pipeline = key.data
                statuses.update(pipeline.receive())
                if pipeline.open_requests:
                    continue
                if rounds:
                    pipeline.send(requests)
                    rounds -= 1
                else:
                    selector.unregister(pipeline.socket)
                    pipeline.socket.close()
    return collections.Counter({int(status): times for status, times in statuses.items()})
