# SPDX-License-Identifier: Apache-2.0
"""Many processes that bind models, and one that does so again and again."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytriton.model_config import Tensor
from tests.e2e.binders import binders_of, server_process
from tests.e2e.http_client import infer, is_ready
from tests.e2e.waiting import eventually

X, Y = (Tensor(name=name, dtype=np.float32, shape=(1,)) for name in "xy")
ONE = {"x": np.ones((1, 1), np.float32)}
PROCESSES = 20
ROUNDS = 40
# 40 models of which something stays are far more.
GROWTH_BYTES = 1 << 20


@pytest.fixture
def binders(host, start_script):
    return binders_of(host.triton, host.port, start_script)


def twice(requests):
    return [{"y": 2 * request["x"]} for request in requests]


def test_many_processes_bind_at_once(binders, host):
    names = [f"Remote{number}" for number in range(PROCESSES)]
    scripts = [binders.start(model=name) for name in names]
    assert eventually(lambda: all(is_ready(host.port, name) for name in names))
    assert [infer(host.port, name, ONE)["y"].item() for name in names] == [2] * PROCESSES

    for script in scripts[::2]:
        script.process.kill()

    assert eventually(lambda: not any(is_ready(host.port, name) for name in names[::2]))
    assert all(is_ready(host.port, name) for name in names[1::2])


def bind_and_unbind(remote):
    remote.bind("Remote", twice, [X], [Y])
    remote.unbind("Remote")


def join_and_leave(remote):
    remote.stop()
    remote.connect()


@pytest.mark.parametrize("turn", [bind_and_unbind, join_and_leave])
def test_server_does_not_grow(binders, host, turn):
    server = server_process()
    with binders.here() as remote:
        remote.bind("Other", twice, [X], [Y])
        for _ in range(20):  # what is kept for good is made now
            turn(remote)
        descriptors, least = server.num_fds(), math.inf
        for _ in range(5):
            size = server.memory_info().rss
            for _ in range(ROUNDS):
                turn(remote)
            least = min(least, server.memory_info().rss - size)
            if least < GROWTH_BYTES:  # what allocators keep does not show each time
                break

        assert least < GROWTH_BYTES
        assert infer(host.port, "Other", ONE)["y"].item() == 2
        assert eventually(lambda: server.num_fds() <= descriptors)
