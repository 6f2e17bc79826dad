# SPDX-License-Identifier: Apache-2.0
"""A model whose instances follow its load, on a cluster of plain processes; one is killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest

import tritonserver
from pytriton.serving.server import core as core_module
from tests.e2e.waiting import eventually
from tests.executor.remote.plain_cluster import PlainCluster
from tests.repository_e2e.model_files import code, config, model, write_model

PARAMETERS = {
    "EXECUTOR": "ray",
    "RAY_MIN_INSTANCES": "1",
    "RAY_MAX_INSTANCES": "2",
    "RAY_UP_AFTER_S": "0.5",
    "RAY_DOWN_AFTER_S": "1.5",
    "IDEMPOTENT": "true",
}
SETTINGS = "dynamic_batching { }\n" + "\n".join(
    f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
    for key, value in PARAMETERS.items()
)
CLIENTS = 8


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(core_module, "_make_ray", PlainCluster)
    slow = code("time.sleep(0.02)\ny = 2 * x")
    write_model(tmp_path / "m", model(slow, config(SETTINGS, max_batch_size=2)))
    server = tritonserver.Server(model_repository=str(tmp_path), exit_timeout=5)
    server.start(wait_until_ready=True)
    yield server
    server.stop()
    assert eventually(lambda: not processes())


def processes():
    """The processes of the model's instances."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE and "_stub m_0_" in child.name():
                found.append(child.pid)
    return found


class Clients:
    """Ask until they are told to stop."""

    def __init__(self, server):
        self._model = server.model("m")
        self._is_over = threading.Event()
        self._pool = ThreadPoolExecutor(CLIENTS)
        self._asking = [self._pool.submit(self._ask, number) for number in range(CLIENTS)]

    def _ask(self, number):
        answers = []
        while not self._is_over.is_set():
            x = np.array([[number, len(answers)]], np.float32)
            (answer,) = self._model.infer(inputs={"X": x})
            answers.append(np.array_equal(np.from_dlpack(answer.outputs["Y"]), 2 * x))
        return answers

    def stop(self):
        """Returns for each answer whether it was right; raises the error of a request."""
        self._is_over.set()
        return [right for each in self._asking for right in each.result()]


def test_instances_follow_the_load_and_no_request_is_lost_with_one(server):
    assert len(processes()) == 1
    clients = Clients(server)
    assert eventually(lambda: len(processes()) == 2)
    killed = random.choice(processes())
    os.kill(killed, signal.SIGKILL)
    assert eventually(lambda: killed not in processes() and len(processes()) == 2)

    answers = clients.stop()

    assert answers
    assert all(answers)
    assert eventually(lambda: len(processes()) == 1)
    assert eventually(server.model("m").ready)  # also with fewer instances
