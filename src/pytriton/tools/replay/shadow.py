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
from pytriton.tools.replay.comparing import ReplayedAnswers, Tolerance, differences
from pytriton.tools.replay.recorded_requests import http_body, parameters_of

_WORKERS = 4
_WINDOW = 128  # requests that may be on their way at a time
_PROBES = 1  # the same while it is not known whether the shadow answers again
_TIMEOUT_S = 10.0
_FIRST_REST_S, _LAST_REST_S = 0.5, 30.0  # after a request without an answer
_REPORT_S = 0.1  # between two reports, so that the server seldom reads one
_READ_BYTES = 1 << 20
# The server and its models come first. The lowest priority of all would make the start last long.
_STARTING_NICENESS, _NICENESS = 10, 19
_UNFINISHED = frozenset({4, 7})  # errors UNAVAILABLE and CANCELLED: the model has not answered
_MAX_TEXTS = 5


class TargetRest:
    """For how long a shadow that does not answer is left alone. Pure.

    After a rest, which is twice as long each time, one request shows whether it answers again.
    """

    def __init__(self) -> None:
        self._rest_s = _FIRST_REST_S
        self._until_s = 0.0
        self._is_down = False
        self.failures = 0  # after which connections to the shadow are made anew

    def fail(self, now_s: float) -> None:
        """Note a request without an answer."""
        self.failures += 1
        if self.left_s(now_s) > 0:  # of those that were under way together, one counts
            return
        self._is_down = True
        self._until_s = now_s + self._rest_s
        self._rest_s = min(2 * self._rest_s, _LAST_REST_S)

    def answer(self) -> None:
        """Note an answer, whatever it is."""
        self._is_down = False
        self._rest_s = _FIRST_REST_S

    def left_s(self, now_s: float) -> float:
        """Returns how long nothing may be asked; 0: something may."""
        return max(0.0, self._until_s - now_s) if self._is_down else 0.0

    def window(self, now_s: float) -> int:
        """Returns how many requests may be on their way."""
        if not self._is_down:
            return _WINDOW
        return 0 if self._until_s > now_s else _PROBES


class ShadowCounts:
    """What became of requests; all workers count here."""

    def __init__(self) -> None:
        self.changed = threading.Event()
        self.rest = TargetRest()
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[str]] = {}  # of each model, by the result
        self._differences: list[str] = []
        self._error = ""

    def add(self, model: str, result: str, *, difference: str = "", error: str = "") -> None:
        """Count a request: equal, different, failed, skipped or dropped."""
        with self._lock:
            self._counts.setdefault(model, Counter())[result] += 1
            if difference and len(self._differences) < _MAX_TEXTS:
                self._differences.append(difference)
            self._error = error or self._error
        self.changed.set()

    def take(self, now_s: float, processor_ns: int) -> bytes:
        """Returns a line with all counts, the latest texts, and how many requests may come."""
        self.changed.clear()
        with self._lock:
            message: dict[str, Any] = {
                "counts": self._counts,
                "differences": self._differences,
                "error": self._error,
                "processor_ns": processor_ns,
                "window": self.rest.window(now_s),
            }
            line = json.dumps(message).encode() + b"\n"
            self._differences, self._error = [], ""
        return line


class ShadowWorker:
    """Asks the shadow, one request after the other."""

    def __init__(self, address: Address, counts: ShadowCounts, tolerance: Tolerance) -> None:
        self.waiting: queue.SimpleQueue[Exchange] = queue.SimpleQueue()
        self._address = address
        self._counts = counts
        self._tolerance = tolerance
        self._client = kserve_client(address, {}, _TIMEOUT_S)
        self._failures = 0  # of all workers, when this one has connected

    def run(self) -> None:
        """Serve what comes, for ever."""
        while True:
            self.serve(self.waiting.get())

    def serve(self, exchange: Exchange) -> None:
        """Send a request again, and count what came of it."""
        counts, rest, model = self._counts, self._counts.rest, exchange.model
        if not is_comparable(exchange, self._address.protocol):
            counts.add(model, "skipped")
            return
        if rest.left_s(time.monotonic()):
            counts.add(model, "dropped")  # it would only wait, and then another one after it
            return
        try:
            answers = self._ask(exchange)
        except UnansweredError as error:
            rest.fail(time.monotonic())
            counts.add(model, "failed", error=str(error))
            return
        except AskError as error:
            answers = ReplayedAnswers((), str(error))
        except Exception as error:  # noqa: BLE001  one answer must not end all others
            counts.add(model, "failed", error=f"{type(error).__name__}: {error}")
            return
        rest.answer()
        found = differences(exchange, answers, self._tolerance)
        if found:
            counts.add(model, "different", difference=found[0].text())
        else:
            counts.add(model, "equal")

    def _ask(self, exchange: Exchange) -> ReplayedAnswers:
        client, failures = self._client, self._counts.rest.failures
        if isinstance(client, KserveHttpClient):
            if failures != self._failures:  # a connection that is as old may be as dead
                client.close()
                self._failures = failures
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
        return ReplayedAnswers([{each.name: each.array for each in one.outputs} for one in found])

    @staticmethod
    def _ask_http(client: KserveHttpClient, exchange: Exchange) -> ReplayedAnswers:
        head, binary = http_body(exchange)
        headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(head))}
        path = f"{model_path(exchange.model, exchange.version)}/infer"
        reply = client.post(path, head + binary, headers)
        document = orjson.loads(reply.body[: reply.head_length])
        outputs = outputs_of_body(document, reply.body, reply.head_length)
        return ReplayedAnswers([{each.name: each.array() for each in outputs}])


def is_comparable(exchange: Exchange, protocol: str) -> bool:
    """Returns whether a shadow can be asked the same, and its answer says something."""
    if exchange.is_decoupled and protocol != "grpc":
        return False
    return not any(each.error and each.code in _UNFINISHED for each in exchange.responses)


def worker_of(exchange: Exchange, sizes: list[int]) -> int:
    """Returns which worker gets a request: of a sequence always the same, which keeps its order."""
    if exchange.correlation_id:
        return zlib.crc32(str(exchange.correlation_id).encode()) % len(sizes)
    return sizes.index(min(sizes))


def main(descriptor: int, url: str, tolerance: Tolerance) -> None:
    """Serve the server over an inherited socket until that is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this
    os.nice(_STARTING_NICENESS)
    counts = ShadowCounts()
    workers = [ShadowWorker(parse_address(url), counts, tolerance) for _ in range(_WORKERS)]
    os.nice(_NICENESS - _STARTING_NICENESS)  # of this thread, so before it starts others
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
    started_ns = time.process_time_ns()  # the start is paid once, at any load
    while True:
        try:
            server.sendall(counts.take(time.monotonic(), time.process_time_ns() - started_ns))
        except OSError:  # the server is gone
            os._exit(0)
        left_s = counts.rest.left_s(time.monotonic())
        counts.changed.wait(left_s or None)  # the end of a rest is news, too
        time.sleep(_REPORT_S)
