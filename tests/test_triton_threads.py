# SPDX-License-Identifier: Apache-2.0
"""`Triton` and `RemoteTriton`: servers that stop, end and start at the same time; all are fakes."""

from __future__ import annotations

import threading
from typing import ClassVar

import numpy as np
import pytest

from pytriton import triton
from pytriton.binding import remote_triton
from pytriton.exceptions import PyTritonInvalidOperationError
from pytriton.model_config import Tensor
from pytriton.runtime.transport.control import Started
from pytriton.triton import RemoteTriton, Triton, TritonConfig
from tests.e2e.waiting import DEADLINE_S

X = Tensor(name="x", dtype=np.float32, shape=(1,))


class FakeServer:
    """A server process that the test plays."""

    made: ClassVar[list[FakeServer]] = []
    events: ClassVar[list[str]] = []

    def __init__(self, on_exit):
        self.made.append(self)
        self.may_stop = threading.Event()
        self.may_stop.set()
        self.is_stopping = threading.Event()

    def start(self, config, timeout_s, *, awaits_models, meanwhile):
        self.events.append("start")
        return Started(1, 2, 3)

    def is_alive(self):
        return True

    def bind(self, model, on_unrecoverable, timeout_s):
        pass

    def report_serving(self):
        pass

    def stop(self, timeout_s):
        self.is_stopping.set()
        assert self.may_stop.wait(DEADLINE_S)
        self.events.append("stopped")


class FakeLink:
    """A connection to a server that the test plays."""

    made: ClassVar[list[FakeLink]] = []

    def __init__(self, sock, on_end):
        self.made.append(self)
        self.has_ended = False
        self._on_end = on_end

    def open(self, message, timeout_s):
        if len(self.made) == 1:  # the server ends when it has just answered
            self.has_ended = True
            self._on_end()
        return Started(1, 2, 3)

    def report_serving(self):
        pass

    def unbind_all(self, models, timeout_s):
        pass

    def close(self):
        pass


@pytest.fixture
def fakes(monkeypatch):
    monkeypatch.setattr(triton, "ServerProcess", FakeServer)
    monkeypatch.setattr(remote_triton, "ServerLink", FakeLink)
    monkeypatch.setattr(FakeServer, "made", [])
    monkeypatch.setattr(FakeServer, "events", [])
    monkeypatch.setattr(FakeLink, "made", [])


@pytest.fixture
def served(fakes):
    one = Triton(config=TritonConfig())
    one.bind("Same", lambda x: {"y": x}, [X], [Tensor(name="y", dtype=np.float32, shape=(1,))])
    one.run()
    yield one
    one.stop()


def join(thread):
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_next_server_starts_after_the_stop_of_the_last_one_however_long_that_takes(served):
    (first,) = FakeServer.made
    first.may_stop.clear()

    class Finished(threading.Event):
        """Lets the stop end as soon as somebody waits for its end; until then, a limit is over."""

        def wait(self, timeout=None):
            if timeout is not None:
                return False
            first.may_stop.set()
            return super().wait()

    stopping = threading.Thread(target=served.stop)
    served._stop_finished = Finished()
    stopping.start()
    assert first.is_stopping.wait(DEADLINE_S)
    served.run()
    first.may_stop.set()
    join(stopping)

    assert FakeServer.events == ["start", "stopped", "start"]


def test_server_that_ends_right_after_its_answer_is_waited_for_again(fakes, monkeypatch):
    monkeypatch.setattr(remote_triton.rendezvous, "connect", lambda port, timeout_s: None)
    one = RemoteTriton("localhost:1")
    one.connect()

    assert one.is_connected()
    assert [link.has_ended for link in FakeLink.made] == [True, False]
    one.stop()


def test_stop_ends_a_connect_that_waited_for_another_stop(fakes, monkeypatch):
    def refuse(port, timeout_s):
        raise ConnectionRefusedError

    monkeypatch.setattr(remote_triton.rendezvous, "connect", refuse)
    monkeypatch.setattr(remote_triton, "DEFAULT_TRITON_STARTUP_TIMEOUT_S", DEADLINE_S)
    one = RemoteTriton("localhost:1")
    stopping = threading.Thread(target=one.stop)

    class Finished(threading.Event):
        """While the end of a stop is waited for, another thread wants to stop, too."""

        def wait(self, timeout=None):
            stopping.start()
            return one._stop_requested.wait(DEADLINE_S)

    one._stop_finished = Finished()
    with pytest.raises(PyTritonInvalidOperationError, match="stopped while it waited"):
        one.connect()
    join(stopping)
