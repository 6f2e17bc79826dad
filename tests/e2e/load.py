# SPDX-License-Identifier: Apache-2.0
"""Clients that send all the time, until they are told to stop or nobody answers."""

from __future__ import annotations

import http.client
import itertools
import threading

import numpy as np

from tests.e2e.http_client import binary_body, json_body
from tests.e2e.waiting import DEADLINE_S

# One that travels inside a message to the instance, and one in shared memory.
_SMALL = (json_body({"x": np.ones((1, 2), np.float32)}), {})
_LARGE = binary_body({"x": np.ones((1, 50_000), np.float32)})


class ConstantLoad:
    """Threads that each keep one request in flight, small and large in turn."""

    def __init__(self, port: int, model: str = "Model", clients: int = 2) -> None:
        self._port = port
        self._path = f"/v2/models/{model}/infer"
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._send) for _ in range(clients)]
        self.statuses: list[int] = []

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=DEADLINE_S)
        try:
            for body, headers in itertools.cycle((_SMALL, _LARGE)):
                if self._stopped.is_set():
                    break
                connection.request("POST", self._path, body, headers)
                response = connection.getresponse()
                response.read()
                self.statuses.append(response.status)
        except (OSError, http.client.HTTPException):
            pass  # the server is gone, which is what such a test does to it
        finally:
            connection.close()
