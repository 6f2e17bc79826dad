# SPDX-License-Identifier: Apache-2.0
"""A generator in the test's own process, and servers of gRPC that answer what they are told to."""

from __future__ import annotations

import contextlib
import socket
import threading

import numpy as np

from pytriton.protocol.http2 import encode_header_block, frames
from pytriton.tools.perf.load import recipe as control
from pytriton.tools.perf.load.plan import InputSet, LoadPlan, LoadProtocol
from pytriton.tools.perf.load.recipe import LevelDone, TakeLevel
from pytriton.tools.perf.load.records import merged
from pytriton.tools.perf.load.requests import address_of, check_plan, recipe_of
from pytriton.tools.perf.load.worker import LoadWorker

SETTINGS = frames.frame(frames.SETTINGS, 0, 0, b"")
HEADERS = encode_header_block([(b":status", b"200"), (b"content-type", b"application/grpc")])
TRAILERS = encode_header_block([(b"grpc-status", b"0")])


def plan_for(url, protocol=LoadProtocol.HTTP, **changes):
    inputs = [[InputSet({"a": np.ones((1, 1), np.float32)})]]
    return LoadPlan(**{"url": url, "protocol": protocol, "model": "M", "inputs": inputs} | changes)


def run(plan, level, requests=None, *, before=None, receive_bytes=None, waits_for_opening=False):
    """The records of a level with an end, made in this thread.

    `before` is called when the server has been reached. With `receive_bytes`, connections give no
    more at once. With `waits_for_opening`, the server's settings come before the first request.
    """
    check_plan(plan)
    recipe = recipe_of(plan, address_of(plan), [])
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = LoadWorker(theirs, recipe)
        try:
            problem = worker.check()
            assert not problem, problem
            if before is not None:
                before()
            if receive_bytes is not None:
                _limit(worker, receive_bytes)
            if waits_for_opening:
                worker._turn()
            control.send(ours, TakeLevel(level, requests, 0, 1, 1))
            worker._poller.add(theirs.fileno(), worker._on_order)
            ours.setblocking(False)
            while not _is_readable(ours):
                worker._turn()
            ours.setblocking(True)
            inbox = control.LoadMessageInbox(ours, control.decode_report)
            assert inbox.receive() == LevelDone(1)
            return merged(recipe, [worker._taken()], is_done=True)
        finally:
            worker._carriers.close()
            worker._poller.close()


def _limit(worker, size):
    """Let the connection that `check` opened receive in small pieces."""
    session = worker._carriers.of_lane(0).open()
    receive = session._receive
    session._receive = lambda _size: receive(size)


def _is_readable(connection):
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


def head(stream, block, *, is_end):
    flags = frames.END_HEADERS | (frames.END_STREAM if is_end else 0)
    return frames.frame(frames.HEADERS, flags, stream, block)


def message(stream, content=b""):
    framed = b"\x00" + len(content).to_bytes(4, "big") + content
    return frames.frame(frames.DATA, 0, stream, framed)


def whole_answer(stream):
    return (
        head(stream, HEADERS, is_end=False) + message(stream) + head(stream, TRAILERS, is_end=True)
    )


class FakeGrpcServer:
    """Gives each whole request of a connection the next answer, which is made for its stream.

    An answer of None closes the connection. What comes after the last answer is not answered.
    """

    def __init__(self, *connections, opening=SETTINGS):
        self.requests = []  # the contents of DATA frames, by connection
        self.ended = []  # whether the stream ended with each of them
        self._script = connections
        self._opening = opening
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    @property
    def url(self):
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self):
        self._threads[0].start()
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _accept(self):
        for answers in self._script:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection, answers), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection, answers):
        received = []
        self.requests.append(received)
        answers = list(answers)
        with connection, contextlib.suppress(OSError):
            connection.sendall(self._opening)
            for stream, content, is_end in _requests_of(connection):
                received.append(content)
                self.ended.append(is_end)
                answer = answers.pop(0) if answers else (lambda _stream: b"")
                if answer is None:  # what still comes is read, as it would reset the connection
                    connection.shutdown(socket.SHUT_WR)
                    continue
                connection.sendall(answer(stream))


def _requests_of(connection):
    """Each DATA frame: its stream, its content and whether the stream ends with it."""
    with connection.makefile("rb") as file:
        file.read(len(frames.PREFACE))
        while len(header := file.read(frames.HEADER_BYTES)) == frames.HEADER_BYTES:
            word, flags, stream = frames.unpack_header(header)
            content = file.read(word >> 8)
            if word & 0xFF == frames.DATA:
                yield stream, content, bool(flags & frames.END_STREAM)
