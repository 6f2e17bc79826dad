# SPDX-License-Identifier: Apache-2.0
"""Sends a share of the requests to another server as well, and counts answers that differ.

A process of its own asks the other server and compares, so that neither takes time from the event
loop. Requests are passed on after they were answered, no more than this process takes and no more
than `pacing` allows: the other server may be slow, wrong or gone, and no client notices.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from pytriton.base.package import IMPORT_FOLDER
from pytriton.base.threads import start_thread
from pytriton.protocol.recording import MAGIC, encode_record
from pytriton.serving.server.metrics.exposition import MetricSample, SampleFamily
from pytriton.serving.server.process.resources import usable_cores
from pytriton.serving.server.recording.pacing import FIRST_WINDOW, ShadowPace, ShadowProgress
from pytriton.serving.server.recording.tap import ExchangeChoice, ExchangeQueue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytriton.serving.server.options.server_options import ShadowOptions
    from pytriton.serving.server.recording.tap import EngineTap

logger = logging.getLogger(__name__)

# In place of the current folder, where a user's files could be named like modules.
_BOOTSTRAP = (
    "import sys; sys.path[0] = sys.argv[1]; "
    "from pytriton.tools.replay.shadow import Tolerance, main; "
    "main(int(sys.argv[2]), sys.argv[3], Tolerance(*map(float, sys.argv[4:])))"
)
_MAX_BYTES = 32 << 20  # of requests that wait
_GATHERING_S = 0.1  # so that the thread runs seldom, and passes on many
_READ_BYTES = 1 << 16
_FIRST_RESTART_S, _LAST_RESTART_S = 1.0, 60.0  # between two processes
_LOG_INTERVAL_S = 60.0  # between two lines about answers that differ
RESULTS = ("equal", "different", "failed", "skipped")
# Why requests are dropped, as docs/recording.md explains it.
REASONS = ("budget", "slow", "gone", "sequence", "room", "lost", "error")


class Shadow:
    """The queue of requests for the other server, and the process that asks it."""

    def __init__(self, options: ShadowOptions, tap: EngineTap) -> None:
        assert options.url is not None
        self._url = options.url
        self._tolerances = [repr(options.rtol), repr(options.atol)]
        self._tap = tap
        self._pace = ShadowPace(usable_cores(), time.monotonic_ns())
        choice = ExchangeChoice(options.models, options.share)
        self._queue = ExchangeQueue(choice, _MAX_BYTES, self._pace)
        self._queue.on_added = self._wake
        self._is_woken = False
        self._news, self._news_end = socket.socketpair()  # the thread waits for two things
        self._is_closed = threading.Event()
        self._lines = b""  # of the process, whose end has not come
        self._passed = 0  # requests, to the process of now
        self._ended = self._asking_ns = 0  # of the process of now
        self._earlier_ended = self._earlier_ns = 0  # of processes that have ended
        self._lost = 0  # requests, with these
        # Of each model by the result; "dropped" if there was nobody to ask.
        self._counts: dict[str, Counter[str]] = {}  # by all processes
        self._earlier = self._counts  # by those that have ended
        self._window = FIRST_WINDOW
        self._restart_s = _FIRST_RESTART_S
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
        self._is_closed.set()
        self._is_woken = False
        self._wake()
        process = self._process
        if process is not None:  # which ends what the thread may wait for
            process.kill()
            process.wait()

    def families(self) -> Iterator[SampleFamily]:
        """Yields the metrics."""
        yield SampleFamily(
            "nv_shadow_request_count",
            "counter",
            "Number of requests that another server got as well, by what became of them",
            [
                MetricSample(counts[result], {"model": model, "result": result})
                for model, counts in self._counts.items()
                for result in RESULTS
            ],
        )
        yield SampleFamily(
            "nv_shadow_drop_count",
            "counter",
            "Number of requests that another server should have got and did not, by the reason",
            [MetricSample(count, {"reason": each}) for each, count in self._drops().items()],
        )

    def _drops(self) -> dict[str, int]:
        drops = {each: self._queue.drops[each] for each in REASONS}
        drops["gone"] += sum(counts["dropped"] for counts in self._counts.values())
        drops["lost"] += self._lost
        return drops

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(OSError):  # the thread has ended
                self._news.send(b"\0")

    # In the thread

    def _run(self) -> None:
        while not self._is_closed.is_set():
            self._run_process()
            self._is_closed.wait(self._restart_s)
            self._restart_s = min(2 * self._restart_s, _LAST_RESTART_S)
        self._news_end.close()
        self._news.close()

    def _run_process(self) -> None:
        """Start a process, and serve it until it is lost or not needed any more."""
        try:
            connection = self._start_process()
            while not self._is_closed.is_set():
                self._serve(connection)
        except OSError as error:
            if not self._is_closed.is_set():
                logger.warning("The process of the shadow %s was lost: %s", self._url, error)
        finally:
            self._end_process()

    def _serve(self, connection: socket.socket) -> None:
        """Wait for requests or for what the process says, and pass both on."""
        readable, _, _ = select.select([self._news_end, connection], [], [])
        if self._is_closed.wait(_GATHERING_S):
            return
        if self._news_end in readable:
            self._news_end.recv(_READ_BYTES)
            self._is_woken = False
        if connection in readable:
            self._read(connection)
        waiting = self._queue.waiting
        taken = [waiting.popleft() for _ in range(len(waiting))]
        if taken:
            self._passed += len(taken)
            self._queue.release(sum([size for _, size in taken]))
            # It waits while the process does not read, and no more requests are allowed then.
            connection.sendall(b"".join([encode_record(exchange) for exchange, _ in taken]))
        self._tell_pace()

    def _read(self, connection: socket.socket) -> None:
        """Read what the process has counted: lines with all its numbers, of which the last counts.

        Raises:
            OSError: The process is gone.
        """
        data = connection.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError("it has ended")
        *lines, self._lines = (self._lines + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, message: dict[str, Any]) -> None:
        counts = message["counts"]
        self._counts = {
            model: Counter(self._earlier.get(model)) + Counter(counts.get(model))
            for model in {**self._earlier, **counts}
        }
        self._ended = sum(sum(each.values()) for each in counts.values())
        self._asking_ns = message["processor_ns"]
        self._window = message["window"]
        self._restart_s = _FIRST_RESTART_S
        if not self._window:  # it may have dropped any request that it had
            self._queue.sequences.clear()
        self._log(message["differences"], message["error"])

    def _tell_pace(self) -> None:
        self._pace.progress = ShadowProgress(
            ended=self._earlier_ended + self._ended,
            asking_ns=self._earlier_ns + self._asking_ns,
            passing_ns=time.thread_time_ns(),
            window=self._window,
        )

    def _start_process(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        descriptor = theirs.fileno()
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-c", _BOOTSTRAP, IMPORT_FOLDER),
                    *(str(descriptor), self._url, *self._tolerances),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(descriptor,),
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self._socket = ours
        ours.sendall(MAGIC)
        return ours

    def _end_process(self) -> None:
        process, self._process = self._process, None
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()
        if process is not None:
            process.kill()
            process.wait()
        self._lost += max(0, self._passed - self._ended)
        self._earlier_ended += self._passed
        self._earlier_ns += self._asking_ns
        self._passed = self._ended = self._asking_ns = 0
        self._earlier = self._counts
        self._lines = b""
        self._window = FIRST_WINDOW
        self._queue.sequences.clear()
        self._tell_pace()

    def _log(self, differences: list[str], error: str) -> None:
        now_s = time.monotonic()
        if (differences or error) and now_s - self._logged_s >= _LOG_INTERVAL_S:
            self._logged_s = now_s
            text = differences[0] if differences else error
            logger.warning("The shadow %s: %s", self._url, text)
