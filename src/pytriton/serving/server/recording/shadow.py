# SPDX-License-Identifier: Apache-2.0
"""Sends a share of the requests to another server as well, and counts answers that differ.

A process of its own asks the other server and compares, so that neither takes time from the event
loop. Requests are passed on after they were answered. What the process does not take in time is
dropped and counted: the other server may be slow, wrong or gone, and no client notices.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from pytriton.base.package import IMPORT_FOLDER
from pytriton.base.threads import start_thread
from pytriton.protocol.recording import MAGIC, encode_record
from pytriton.serving.server.metrics.exposition import MetricSample, SampleFamily
from pytriton.serving.server.recording.tap import ExchangeChoice, ExchangeQueue, TimeBudget

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytriton.serving.server.options.server_options import ShadowOptions
    from pytriton.serving.server.recording.tap import EngineTap

logger = logging.getLogger(__name__)

# In place of the current folder, where a user's files could be named like modules.
_BOOTSTRAP = (
    "import sys; sys.path[0] = sys.argv[1]; "
    "from pytriton.tools.replay.shadow import main; main(int(sys.argv[2]), sys.argv[3])"
)
_MAX_BYTES = 32 << 20  # of requests that wait
_GATHERING_S = 0.1  # so that the thread runs seldom, and passes on many
_AT_ONCE = 256
# Of the server's time, that copies of requests may take: what a busy server loses by its shadow.
_TIME_SHARE = 0.015
_BURST_NS = 2_000_000
_RESTART_S = 1.0  # between two processes
_LOG_INTERVAL_S = 60.0  # between two lines about answers that differ
RESULTS = ("equal", "different", "failed", "skipped")


class Shadow:
    """The queue of requests for the other server, and the process that asks it."""

    def __init__(self, options: ShadowOptions, tap: EngineTap) -> None:
        assert options.url is not None
        self._url = options.url
        self._tap = tap
        self._budget = TimeBudget(_TIME_SHARE, _BURST_NS)
        choice = ExchangeChoice(options.models, options.share)
        self._queue = ExchangeQueue(choice, _MAX_BYTES, self._budget)
        self._queue.on_added = self._wake
        self._news = threading.Event()
        self._is_closed = False
        self._lost_count = 0  # requests that were passed on, and ended with their process
        self._passed_count = 0  # to the process of now
        self._earlier = dict.fromkeys(RESULTS, 0)  # of processes that have ended
        self._now = dict.fromkeys(RESULTS, 0)
        self._logged_s = -_LOG_INTERVAL_S
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def start(self) -> None:
        """Begin to pass requests on."""
        if start_thread(self._run, "pytriton-shadow") is None:
            logger.error("No thread could be started for the shadow %s", self._url)
            return
        self._tap.add(self._queue)
        logger.info("Requests are sent to %s as well", self._url)

    def close(self) -> None:
        """Pass nothing on any more; may be called twice."""
        self._tap.remove(self._queue)
        self._is_closed = True
        self._news.set()
        process = self._process
        if process is not None:
            process.kill()
            process.wait()

    def families(self) -> Iterator[SampleFamily]:
        """Yields the metrics."""
        yield SampleFamily(
            "nv_shadow_request_count",
            "counter",
            "Number of requests that another server got as well, by what became of them",
            [
                MetricSample(self._earlier[each] + self._now[each], {"result": each})
                for each in RESULTS
            ],
        )
        yield SampleFamily(
            "nv_shadow_drop_count",
            "counter",
            "Number of requests that another server should have got and did not",
            [MetricSample(self._queue.dropped_count + self._lost_count, {})],
        )

    def _wake(self) -> None:
        if not self._news.is_set():
            self._news.set()

    # In the thread

    def _run(self) -> None:
        while not self._is_closed:
            self._news.wait()
            self._news.clear()
            time.sleep(_GATHERING_S)
            while self._queue.waiting and not self._is_closed:
                self._pass_on()
        self._end_process()

    def _pass_on(self) -> None:
        waiting = self._queue.waiting
        taken = [waiting.popleft() for _ in range(min(len(waiting), _AT_ONCE))]
        try:
            connection = self._socket or self._start_process()
            data = b"".join([encode_record(exchange) for exchange, _ in taken])
            connection.sendall(data)  # it waits while the other server is slow
            self._passed_count += len(taken)
        except OSError as error:
            self._lost_count += len(taken)
            if not self._is_closed:
                logger.warning("The process of the shadow %s was lost: %s", self._url, error)
                self._end_process()
                time.sleep(_RESTART_S)
        finally:
            self._queue.release(sum([size for _, size in taken]))
            self._budget.elsewhere_ns = time.thread_time_ns()  # all that this thread has taken

    def _start_process(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        descriptor = theirs.fileno()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, IMPORT_FOLDER, str(descriptor), self._url],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(descriptor,),
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self._socket = ours
        start_thread(lambda: self._read_counts(ours), "pytriton-shadow-counts")
        ours.sendall(MAGIC)
        return ours

    def _end_process(self) -> None:
        process, self._process = self._process, None
        connection, self._socket = self._socket, None
        if connection is not None:
            with contextlib.suppress(OSError):  # the other end is gone
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        if process is not None:
            process.kill()
            process.wait()
        self._lost_count += max(0, self._passed_count - sum(self._now.values()))
        for result in RESULTS:
            self._earlier[result] += self._now[result]
        self._now = dict.fromkeys(RESULTS, 0)
        self._passed_count = 0

    def _read_counts(self, connection: socket.socket) -> None:
        """Read what the process has counted, a line at a time, until it ends."""
        with contextlib.suppress(OSError), connection.makefile("rb") as lines:
            for line in lines:
                message = json.loads(line)
                if connection is not self._socket:
                    return
                self._now = {result: message["counts"][result] for result in RESULTS}
                self._log(message["differences"], message["error"])

    def _log(self, differences: list[str], error: str) -> None:
        now_s = time.monotonic()
        if (differences or error) and now_s - self._logged_s >= _LOG_INTERVAL_S:
            self._logged_s = now_s
            text = differences[0] if differences else error
            logger.warning("The shadow %s: %s", self._url, text)
