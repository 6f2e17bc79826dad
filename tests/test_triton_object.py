# SPDX-License-Identifier: Apache-2.0
"""What a `Triton` object does with its server; here a fake stands in for the server's process."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from pytriton.model_config import Tensor
from pytriton.runtime.transport.control import Started
from pytriton.triton import Triton

X = Tensor(name="x", dtype=np.float32, shape=(-1,))
Y = Tensor(name="y", dtype=np.float32, shape=(-1,))


class FakeServerProcess:
    def __init__(self, on_exit):
        self.on_unrecoverable = []
        self.is_stopped = False
        made.append(self)

    def start(self, config, timeout_s, *, awaits_models, meanwhile) -> Started:
        return Started(1, 2, 3)

    def is_alive(self) -> bool:
        return not self.is_stopped

    def bind(self, model, on_unrecoverable, timeout_s) -> None:
        self.on_unrecoverable.append(on_unrecoverable)

    def report_serving(self) -> None:
        """A fake server is always ready."""

    def stop(self, timeout_s) -> None:
        self.is_stopped = True


made: list[FakeServerProcess] = []


@pytest.fixture
def triton(monkeypatch):
    made.clear()
    monkeypatch.setattr("pytriton.triton.ServerProcess", FakeServerProcess)
    triton = Triton()
    triton.bind("Model", lambda requests: requests, [X], [Y])
    triton.run()
    yield triton
    triton.stop()


def report_unrecoverable_error(server: FakeServerProcess) -> None:
    server.on_unrecoverable[0]()
    for thread in threading.enumerate():
        if thread.name == "pytriton-stop":
            thread.join()


def test_unrecoverable_error_stops_the_server(triton):
    report_unrecoverable_error(made[0])

    assert made[0].is_stopped
    assert not triton.is_alive()


def test_late_unrecoverable_error_of_the_last_server_leaves_the_next_one_alone(triton):
    triton.stop()
    triton.run()

    report_unrecoverable_error(made[0])

    assert not made[1].is_stopped
    assert triton.is_alive()
