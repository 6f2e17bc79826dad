# SPDX-License-Identifier: Apache-2.0
"""Shared memory between server and worker: what is dropped goes back, on both sides."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from pytriton.base.dtypes import FP32
from pytriton.runtime.backend import mailbox
from pytriton.runtime.backend.connection import ServerConnection
from pytriton.runtime.pb_utils.tensor import Tensor
from pytriton.runtime.python_backend.answers import add_tensor
from pytriton.runtime.transport import channel
from pytriton.runtime.transport.arena import Arena
from pytriton.runtime.transport.frames import (
    BatchResult,
    Execute,
    Finalize,
    MemoryFrame,
    ResponseItem,
    ResponsesFrame,
)
from pytriton.runtime.transport.link import socket_pair
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.refs import PartRef, TensorRef
from tests.python_backend.worker_rig import DEADLINE_S

LARGE = np.ones((1, 1 << 20), np.float32)

SUM = """
class TritonPythonModel:
    kept = None
    def execute(self, requests):
        if requests[0].request_id() == "keep":
            self.kept = requests[0].inputs()[0].as_numpy()
        if requests[0].request_id() == "drop later":
            threading.Timer(0.05, self.drop).start()
        total = np.array([[each.inputs()[0].as_numpy().sum() for each in requests]])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", total)])]
    def drop(self):
        self.kept = None
"""
MAKE = """
class TritonPythonModel:
    def execute(self, requests):
        large = np.ones((1, 1 << 20), np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", large)])]
"""


NEGATE = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", -each.inputs()[0].as_numpy())])
            for each in requests
        ]
"""


def lent(rig):
    return rig.channel.tracker.lent_count


def test_inputs_come_back_with_the_next_answers(worker):
    rig = worker(SUM)
    for _ in range(10):
        (outputs,) = rig.run({"x": LARGE})
        assert outputs["y"].item() == LARGE.size
    assert lent(rig) <= 2


def test_model_gets_an_input_whose_parts_are_in_several_places(worker):
    rig = worker(NEGATE)
    rows = [LARGE, 2 * LARGE]
    payload = rig.channel.payload()
    parts = [PartRef(*payload.add((row.tobytes(),), row.nbytes), row.nbytes) for row in rows]
    ref = TensorRef("x", FP32.number, (2, LARGE.size), 0, 2 * LARGE.nbytes, parts=parts)
    rig.say(Execute(1, [1, 1], [ref]), payload)
    answers = rig.answers(1, 2)

    assert len({part.block for part in parts}) == 2
    for row, answer in zip(rows, answers, strict=True):
        assert np.array_equal(answer["y"], -row)


def test_input_that_is_kept_comes_back_when_it_is_dropped(worker):
    rig = worker(SUM)
    rig.run({"x": LARGE}, ids={0: "keep"})
    for _ in range(3):
        rig.run({"x": LARGE})
    rig.run({"x": LARGE[:, :1]}, ids={0: "drop later"})
    # The worker waits for a batch by then, and says so nevertheless.
    while lent(rig):
        assert isinstance(rig.channel.receive().frame, MemoryFrame)


def test_outputs_reuse_what_the_server_gave_back(worker):
    rig = worker(MAKE)
    segments = set()
    for _ in range(10):
        rig.execute({"x": LARGE[:, :1]})
        received = rig.hear(BatchResult)
        segments |= {block.segment for block in received.frame.memory.blocks}
    assert len(segments) == 1


def test_idle_memory_is_given_back(monkeypatch):
    for module in (channel, mailbox):
        monkeypatch.setattr(module, "IDLE_SECONDS", 0.01)
    ours, theirs = socket_pair()
    connection, server = (
        ServerConnection(MemoryChannel(ours, Arena())),
        MemoryChannel(theirs, Arena()),
    )
    tensor = Tensor("y", LARGE)
    connection.outbox.send(
        lambda payload: ResponsesFrame(0, 0, [ResponseItem(1, 0, [add_tensor(payload, tensor)])])
    )
    thread = threading.Thread(target=connection.mailbox.wait, args=(connection.mailbox.jobs,))
    connection.handlers[Finalize] = connection.mailbox.jobs.put
    thread.start()
    server.receive()
    assert server.maps_memory
    server.send_memory_update()
    while server.maps_memory:
        assert isinstance(server.receive().frame, MemoryFrame)
    server.send(Finalize())
    thread.join(DEADLINE_S)
    assert connection.outbox.channel.arena.reserved_bytes == 0
    assert not connection.outbox.uses_memory
    server.close()
    connection.close()


# Inputs that are passed on


def passing(body):
    lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
    return f"""
class TritonPythonModel:
    kept = []
    def execute(self, requests):
        x = requests[0].inputs()[0]
{lines}
"""


ANSWER = "return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x.as_numpy())])]"


@pytest.mark.parametrize(
    "body, is_passed_on",
    [
        (ANSWER, True),
        ("return [pb_utils.InferenceResponse([pb_utils.Tensor('y', x.as_numpy()[:, 8:])])]", True),
        (f"self.kept.append(x)\n{ANSWER}", False),
        (f"self.kept.append(x.as_numpy())\n{ANSWER}", False),
        (f"self.kept.append(x.as_numpy()[0, 5:9])\n{ANSWER}", False),
        (f"self.kept.append(memoryview(x.as_numpy()))\n{ANSWER}", False),
        (f"self.kept.append(x.to_dlpack())\n{ANSWER}", False),
        (f"self.kept.append(np.from_dlpack(x))\n{ANSWER}", False),
        (f"self.kept.append(requests)\n{ANSWER}", False),
        (f"self.kept.append(requests[0])\n{ANSWER}", False),
        (ANSWER.replace("return ", "self.kept = ") + "\nreturn self.kept", False),
        (ANSWER.replace("return ", "self.kept = ") + "\nreturn list(self.kept)", False),
    ],
)
def test_input_that_nobody_keeps_is_passed_on_without_a_copy(worker, body, is_passed_on):
    rig = worker(passing(body))
    large = np.arange(1 << 16, dtype=np.float32).reshape(1, -1)
    for factor in (1, 2, 3):
        rig.execute({"x": large * factor})
        received = rig.hear(BatchResult)
        (ref,) = received.frame.outputs
        assert (ref.block < 0) is is_passed_on
        expected = (large * factor)[:, large.shape[1] - ref.shape[1] :]
        assert (received.array(ref) == expected).all()


def test_input_that_is_passed_on_twice_is_copied(worker):
    rig = worker(
        passing(
            "y, z = [pb_utils.Tensor(n, x.as_numpy()) for n in 'yz']\n"
            "return [pb_utils.InferenceResponse([y, z])]"
        ),
        output_names=["y", "z"],
    )
    for factor in (1, 2):
        (outputs,) = rig.run({"x": LARGE * factor})
        assert (outputs["y"] == LARGE * factor).all()
        assert (outputs["z"] == LARGE * factor).all()
