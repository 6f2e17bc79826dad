# SPDX-License-Identifier: Apache-2.0
"""Models that answer through senders, and how to read what they send."""

from __future__ import annotations

from pytriton.runtime.transport.frames import ResponsesFrame
from tests.python_backend.worker_rig import answer_of


def model(body):
    """A model whose `execute` has these lines, with a few helpers."""
    lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
    return f"""
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

def response(value=1.0, size=1):
    return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.full((1, size), value, np.float32))])

def wait_until(condition):
    while not condition():
        time.sleep(0.001)

class TritonPythonModel:
    def execute(self, requests):
        senders = [each.get_response_sender() for each in requests]
        sender = senders[0]
{lines}
"""


def items_until(rig, count):
    """So many response items, with their values, and the batches that returned meanwhile."""
    items, returned = [], []
    while len(items) < count:
        received = rig.hear(ResponsesFrame)
        items += [(item, answer_of(received, item)) for item in received.frame.items]
        if received.frame.returned_batch:
            returned.append(received.frame.returned_batch)
    assert len(items) == count
    return items, returned


def value(answer):
    return answer["y"].flat[0].item()


def decoupled(worker, body):
    return worker(model(body), is_decoupled=True)
