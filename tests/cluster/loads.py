# SPDX-License-Identifier: Apache-2.0
"""Clients that send requests all the time, and count what becomes of each of them."""

from __future__ import annotations

import collections
import dataclasses
import http.client
import itertools
import json
import re
import threading
import time

import grpc
import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.utils

from tests.e2e.waiting import DEADLINE_S, eventually

_numbers = itertools.count(1)  # no two requests have the same input
STOPPING = "has no available versions"  # of a server that stops, as Triton says it
# The client's library has the same status for a connection that ended, so words tell.
WORDS = re.compile(f"has had no instance|Stub process '|Server exiting|{STOPPING}")
_LARGEST = 1 << 20  # up to here, floats of 32 bits have no rounding


@dataclasses.dataclass
class Tally:
    """What became of the requests of a load. Each is in one of the counts.

    Attributes:
        refused: Typed errors, by their text: UNAVAILABLE of gRPC, 503 of HTTP, or what a server
            says that stops.
        cut: Requests whose connection ended: only where the server ends.
        wrong: Answers that do not belong to their request, and errors of any other kind.
        slowest_s: The longest time that a request took.
    """

    sent: int = 0
    answered: int = 0
    refused: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    cut: int = 0
    wrong: list[str] = dataclasses.field(default_factory=list)
    slowest_s: float = 0.0

    @property
    def refusals(self) -> int:
        return sum(self.refused.values())

    def summary(self):
        """The counts, as numbers and texts."""
        return {
            "sent": self.sent,
            "answered": self.answered,
            "refusals": self.refusals,
            "refused": dict(self.refused.most_common(3)),
            "cut": self.cut,
            "wrong": self.wrong[:3],
            "is_complete": self.is_complete(),
            "slowest_s": round(self.slowest_s, 2),
        }

    def is_complete(self) -> bool:
        """Whether each request has ended, with its own answer or an error that says why."""
        return not self.wrong and self.sent == self.answered + self.refusals + self.cut


class CutError(Exception):
    """The connection ended."""


class RefusedError(Exception):
    """The server answers that there is nobody to execute the request."""


class Load:
    """Threads with a client each; half of them speak HTTP, half gRPC.

    A model answers y = 2 x + 1. Used as a context, which ends when all requests have ended.
    """

    def __init__(self, server, model, clients=6, pause_s=0.005):
        self.model = model
        self.tally = Tally()
        self._server = server
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=[(HttpClient, GrpcClient)[number % 2]])
            for number in range(clients)
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        self.wait_for_answers()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def wait_for_answers(self, count=20):
        """Wait until so many more requests are answered."""
        self._wait(lambda: self.tally.answered, count)

    def wait_for_refusals(self, count=1):
        self._wait(lambda: self.tally.refusals, count)

    def wait_for_cuts(self, count=1):
        self._wait(lambda: self.tally.cut, count)

    def _wait(self, read, count):
        before = read()
        assert eventually(lambda: read() >= before + count), self.tally

    def _run(self, kind):
        client = None
        while not self._is_over.wait(self._pause_s):
            client = client or kind(self._server)
            number = next(_numbers) % _LARGEST
            began_s = time.monotonic()
            try:
                answer, problem = client.infer(self.model, number), None
            except Exception as error:  # noqa: BLE001  whatever it is, it is counted
                answer, problem = None, error
            self._count(number, answer, problem, time.monotonic() - began_s)
            if isinstance(problem, CutError):
                client.close()
                client = None
        if client is not None:
            client.close()

    def _count(self, number, answer, problem, took_s):
        tally = self.tally
        with self._lock:
            tally.sent += 1
            tally.slowest_s = max(tally.slowest_s, took_s)
            if isinstance(problem, RefusedError):
                tally.refused[str(problem)] += 1
            elif isinstance(problem, CutError):
                tally.cut += 1
            elif problem is not None or answer != [2.0 * number + 1.0]:
                tally.wrong.append(f"{number}: {answer} {problem!r}")
            else:
                tally.answered += 1


class HttpClient:
    def __init__(self, server):
        self._connection = http.client.HTTPConnection(
            server.host, server.http_port, timeout=DEADLINE_S
        )

    def infer(self, model, number):
        tensor = {"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [number]}
        body = json.dumps({"inputs": [tensor]})
        try:
            self._connection.request("POST", f"/v2/models/{model}/infer", body)
            response = self._connection.getresponse()
            document = json.loads(response.read())
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise CutError from error
        if response.status == http.HTTPStatus.SERVICE_UNAVAILABLE or _is_stopping(document):
            raise RefusedError(document["error"])
        assert response.status == http.HTTPStatus.OK, document
        return document["outputs"][0]["data"]

    def close(self):
        self._connection.close()


class GrpcClient:
    def __init__(self, server):
        # Each has a connection of its own, and does not wait when the server is gone.
        self._client = triton_grpc.InferenceServerClient(
            f"{server.host}:{server.grpc_port}",
            channel_args=[("grpc.use_local_subchannel_pool", 1)],
        )

    def infer(self, model, number):
        tensor = triton_grpc.InferInput("X", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.array([[number]], np.float32))
        try:
            answer = self._client.infer(model, [tensor], client_timeout=DEADLINE_S)
        except tritonclient.utils.InferenceServerException as error:
            if WORDS.search(error.message()):
                raise RefusedError(error.message()) from error
            if error.status() != str(grpc.StatusCode.UNAVAILABLE):
                raise
            raise CutError from error
        return answer.as_numpy("Y").ravel().tolist()

    def close(self):
        self._client.close()


def _is_stopping(document):
    return STOPPING in document.get("error", "")
