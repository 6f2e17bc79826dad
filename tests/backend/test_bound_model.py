# SPDX-License-Identifier: Apache-2.0
"""Instances of a bound model: started together, ended together."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.model_config import Tensor
from pytriton.runtime.functions import bound_model
from pytriton.runtime.functions.bound_model import BoundModel
from tests.e2e.waiting import DEADLINE_S, eventually


@pytest.fixture
def model():
    tensor = Tensor(name="x", dtype=np.float32, shape=(1,))
    return BoundModel("m", [lambda requests: requests] * 3, [tensor], [tensor])


def test_instances_end_with_their_channels(model):
    sockets, concurrency = model.open_instances(lambda: None)
    assert concurrency == [1, 1, 1]
    assert model.is_alive()

    for sock in sockets:
        sock.close()

    assert eventually(lambda: not model.is_alive())
    model.close(DEADLINE_S)


def test_close_does_not_wait_for_instances_that_run_on(model):
    sockets, _ = model.open_instances(lambda: None)

    model.close(0.0)

    assert model.is_alive()
    for sock in sockets:
        sock.close()


def test_instances_that_run_end_where_another_cannot_start(model, monkeypatch):
    make_pair = bound_model.socket_pair
    made = []

    def pair():
        if len(made) == 2:
            raise OSError(24, "Too many open files")
        made.append(make_pair())
        return made[-1]

    monkeypatch.setattr(bound_model, "socket_pair", pair)

    with pytest.raises(OSError, match="Too many open files"):
        model.open_instances(lambda: None)

    hosts = list(model._hosts)
    assert len(hosts) == 2
    assert eventually(lambda: not any(host.is_alive() for host in hosts))
    model.close(DEADLINE_S)


def test_failure_names_the_instance_only_to_users_of_declared_tensors(model):
    declared = model.calls()[1].error_text(ValueError("no"))
    model.takes_parameters = False
    annotated = model.calls()[1].error_text(ValueError("no"))

    assert declared == (
        "Failed to process the request(s) for model 'm_0_1', message: ValueError: no"
    )
    assert annotated == "model 'm' failed: ValueError: no"
