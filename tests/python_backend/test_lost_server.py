# SPDX-License-Identifier: Apache-2.0
"""Models whose server is gone when they answer: nothing of it is taken for a failure of theirs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from pytriton.base.dtypes import FP32
from pytriton.runtime.backend.flow_control import OpenBatches
from pytriton.runtime.pb_utils.response import InferenceResponse
from pytriton.runtime.pb_utils.tensor import Tensor
from pytriton.runtime.python_backend.answers import failure_of
from pytriton.runtime.python_backend.batch_execution import BatchExecution
from pytriton.runtime.python_backend.device_tensors import DeviceTensors
from pytriton.runtime.python_backend.model_backend import ModelExecution
from pytriton.runtime.python_backend.replies import ModelReplies
from pytriton.runtime.transport.frames import Execute
from pytriton.runtime.transport.payload import Received


class LostOutbox:
    """Cannot send anything."""

    def send(self, make):
        raise ConnectionResetError("the server has ended")


def answers(requests):
    return [InferenceResponse([Tensor("y", np.zeros((1, 1), np.float32))]) for _ in requests]


async def later(requests):
    return answers(requests)


def fails_after_sending(requests):
    requests[0].get_response_sender().send(*answers(requests))
    raise ValueError("after it was sent")


def run(execution, *, is_decoupled=False):
    device = DeviceTensors(keeps_on_device=False)
    batches = OpenBatches(LostOutbox(), None, ["y"], is_decoupled=is_decoupled, is_batching=True)
    batches.replies = ModelReplies(device)
    batches.describe = lambda _, error: failure_of("m_0_0", error)
    execution.run(batches.begin(Received(Execute(1, [1], []), bytearray(), 0, {})))


class Scene:
    """The failures that a worker has logged."""

    def __init__(self):
        self.failures = []
        self.runtime = SimpleNamespace(log_failure=self.failures.append, instance_name="m_0_0")

    def execution(self, function):
        coroutines = SimpleNamespace(submit=asyncio.run)
        model = SimpleNamespace(execute=function)
        return ModelExecution(
            model, "m", self.runtime, DeviceTensors(keeps_on_device=False), coroutines
        )


@pytest.mark.parametrize("function", [answers, lambda _: None])
def test_answer_that_cannot_be_sent_is_no_failure_of_the_model(function):
    scene = Scene()

    with pytest.raises(ConnectionResetError):
        run(scene.execution(function), is_decoupled=function is not answers)
    assert scene.failures == []


def test_coroutine_ends_quietly_without_a_server():
    scene = Scene()
    run(scene.execution(later))

    assert scene.failures == []


def test_failure_of_the_model_is_logged_once_if_what_it_had_sent_is_lost():
    scene = Scene()

    with pytest.raises(ConnectionResetError):
        run(scene.execution(fails_after_sending))
    assert [str(each) for each in scene.failures] == ["after it was sent"]


def test_batch_that_cannot_be_answered_is_no_failure_of_the_backend():
    scene = Scene()
    model = SimpleNamespace(execute_batch=lambda _: {"y": np.zeros((1, 1), np.float32)})
    device = DeviceTensors(keeps_on_device=False)

    with pytest.raises(ConnectionResetError):
        run(BatchExecution(model, scene.runtime, device, {"y": FP32}))
    assert scene.failures == []
