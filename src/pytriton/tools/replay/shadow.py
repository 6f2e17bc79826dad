# SPDX-License-Identifier: Apache-2.0
"""The process that asks a shadow, and counts the answers that differ.

It reads exchanges from the server and sends their requests again, no faster than the shadow
answers, so that the server notices and drops the rest.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import threading
import time
import zlib
from collections import Counter
from typing import Any

import orjson

from pytriton.client.kserve.address import Address, parse_address
from pytriton.client.kserve.errors import AskError, UnansweredError
from pytriton.client.kserve.grpc_client import KserveGrpcClient
from pytriton.client.kserve.http_client import KserveHttpClient, kserve_client
from pytriton.client.kserve.records import (
    HEADER_LENGTH,
    ModelQuery,
    model_path,
    outputs_of_body,
)
from pytriton.protocol.recording import Exchange, RecordReader
from pytriton.tools.perf.data.recorded import plain
from pytriton.tools.replay.comparing import Answers, Tolerance, differences
from pytriton.tools.replay.recorded_requests import http_body, parameters_of

_WORKERS = 4
_WAITING = 32  # exchanges of each worker
_TIMEOUT_S = 10.0
_FIRST_REST_S, _LAST_REST_S = 0.1, 2.0  # after a request without an answer
_REPORT_S = 0.25
_READ_BYTES = 1 << 20
_NICENESS = 10  # the server and its models come first
_MAX_TEXTS = 5


class ShadowCounts:
    """What became of requests; all workers count here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._differences: list[str] = []
        self._error = ""
        self._is_new = False

    def add(self, result: str, *, difference: str = "", error: str = "") -> None:
        """Count a request."""
        with self._lock:
            self._counts[result] += 1
            self._is_new = True
            if difference and len(self._differences) < _MAX_TEXTS:
                self._differences.append(difference)
            self._error = error or self._error

    def take(self) -> bytes:
        """Returns a line with all counts and the latest texts; empty if nothing changed."""
        with self._lock:
            if not self._is_new:
                return b""
            results = ("equal", "different", "failed", "skipped")
            message: dict[str, Any] = {
                "counts": {result: self._counts[result] for result in results},
                "differences": self._differences,
                "error": self._error,
            }
            self._differences, self._error, self._is_new = [], "", False
        return json.dumps(message).encode() + b"\n"


class ShadowWorker:
    """Asks the shadow, one request after the other."""

    def __init__(self, address: Address, counts: ShadowCounts) -> None:
        self.waiting: queue.Queue[Exchange] = queue.Queue(_WAITING)
        self._address = address
        self._counts = counts
        self._rest_s = _FIRST_REST_S
        self._client = kserve_client(address, {}, _TIMEOUT_S)

    def run(self) -> None:
        """Serve what comes, for ever."""
        while True:
            self.serve(self.waiting.get())

    def serve(self, exchange: Exchange) -> None:
        """Send a request again, and count what came of it."""
        if exchange.is_decoupled and self._address.protocol != "grpc":
            self._counts.add("skipped")
            return
        try:
            answers = self._ask(exchange)
        except UnansweredError as error:
            self._counts.add("failed", error=str(error))
            # The shadow is gone or hangs: the next requests would only wait for it, too.
            time.sleep(self._rest_s)
            self._rest_s = min(2 * self._rest_s, _LAST_REST_S)
            return
        except AskError as error:
            answers = Answers((), str(error))
        except Exception as error:  # noqa: BLE001  one answer must not end all others
            self._counts.add("failed", error=f"{type(error).__name__}: {error}")
            return
        self._rest_s = _FIRST_REST_S
        found = differences(exchange, answers, Tolerance())
        if found:
            self._counts.add("different", difference=found[0].text())
        else:
            self._counts.add("equal")

    def _ask(self, exchange: Exchange) -> Answers:
        client = self._client
        if isinstance(client, KserveHttpClient):
            return self._ask_http(client, exchange)
        assert isinstance(client, KserveGrpcClient)
        question = ModelQuery(
            exchange.model,
            exchange.version,
            tuple(plain(each).named() for each in exchange.inputs),
            tuple(exchange.outputs or ()),
            parameters_of(exchange),
            exchange.id,
        )
        is_stream = exchange.is_decoupled
        found = list(client.stream(question)) if is_stream else [client.infer(question)]
        return Answers([{each.name: each.array for each in one.outputs} for one in found])

    @staticmethod
    def _ask_http(client: KserveHttpClient, exchange: Exchange) -> Answers:
        head, binary = http_body(exchange)
        headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(head))}
        path = f"{model_path(exchange.model, exchange.version)}/infer"
        reply = client.post(path, head + binary, headers)
        document = orjson.loads(reply.body[: reply.head_length])
        outputs = outputs_of_body(document, reply.body, reply.head_length)
        return Answers([{each.name: each.array() for each in outputs}])


def worker_of(exchange: Exchange, sizes: list[int]) -> int:
    """Returns which worker gets a request: of a sequence always the same, which keeps its order."""
    if exchange.correlation_id:
        return zlib.crc32(str(exchange.correlation_id).encode()) % len(sizes)
    return sizes.index(min(sizes))


def main(descriptor: int, url: str) -> None:
    """Serve the server over an inherited socket until that is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this
    os.nice(_NICENESS)
    counts = ShadowCounts()
    workers = [ShadowWorker(parse_address(url), counts) for _ in range(_WORKERS)]
    for worker in workers:
        threading.Thread(target=worker.run, daemon=True).start()
    with socket.socket(fileno=descriptor) as server:
        threading.Thread(target=_report, args=(server, counts), daemon=True).start()
        reader = RecordReader()
        while data := server.recv(_READ_BYTES):
            for record in reader.feed(data):
                if isinstance(record, Exchange):
                    sizes = [worker.waiting.qsize() for worker in workers]
                    workers[worker_of(record, sizes)].waiting.put(record)
    os._exit(0)  # workers may wait for the shadow, and nobody for them


def _report(server: socket.socket, counts: ShadowCounts) -> None:
    while True:
        time.sleep(_REPORT_S)
        try:
            server.sendall(counts.take())
        except OSError:  # the server is gone
            os._exit(0)
