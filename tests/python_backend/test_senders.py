# SPDX-License-Identifier: Apache-2.0
"""Responses through senders: before and after `execute` returned, and how both get along."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.runtime.transport.frames import (
    BatchFailure,
    Cancel,
    ResponsesFrame,
)
from tests.python_backend.sender_models import decoupled, items_until, model, value
from tests.python_backend.worker_rig import answer_of

X = np.array([[1.0]], np.float32)
PREFIX = "Failed to process the request(s) for model 'm_0_0', message: "
MORE_THAN_ONE = "Unable to send response. Non-decoupled model cannot send more than one response."
CLOSED = "Unable to send response. Response sender has been closed."


# Models that are not decoupled


@pytest.mark.parametrize(
    "body",
    [
        "sender.send(response(), FINAL)",
        "sender.send(response()); sender.send(flags=FINAL)",
        "sender.send(response(), FINAL); return [None]",
        "threading.Thread(target=sender.send, args=(response(), FINAL)).start()",
        (
            "sender.send(response())\n"
            "threading.Timer(0.01, sender.send, kwargs={'flags': FINAL}).start()"
        ),
    ],
    ids=["at once", "in two steps", "none in list", "from a thread", "final from a thread"],
)
def test_coupled_model_sends_one_response(worker, body):
    rig = worker(model(body))

    (outputs,) = rig.run({"x": X})
    assert value(outputs) == 1
    assert rig.hears_nothing()


def test_some_are_returned_and_some_are_sent(worker):
    rig = worker(model("senders[1].send(response(2.0), FINAL)\nreturn [response(1.0), None]"))
    first, second = rig.run({"x": X}, {"x": X})
    assert (value(first), value(second)) == (1, 2)


def test_instance_is_free_while_an_answer_is_open(worker):
    rig = worker(
        model(
            """
self.senders = getattr(self, "senders", []) + senders
if len(self.senders) == 2:
    for each in self.senders:
        each.send(response(), FINAL)
"""
        )
    )
    first = rig.execute({"x": X})
    frame = rig.hear(ResponsesFrame).frame
    assert (frame.items, frame.returned_batch) == ([], first)
    second = rig.execute({"x": X})

    items, _ = items_until(rig, 2)
    assert {item.batch for item, _ in items} == {first, second}


@pytest.mark.parametrize(
    "body",
    [
        "sender.send(response(1.0), FINAL)\nreturn [response(2.0)]",
        "sender.send(response(1.0))\nreturn [response(2.0)]",
        "sender.send(response(1.0))\nsender.send(response(2.0), FINAL)",
        "sender.send(response(1.0))\nraise ValueError()",
        "sender.send(response(1.0), FINAL)\nraise ValueError()",
    ],
)
def test_client_gets_the_response_that_was_sent_first(worker, body):
    rig = worker(model(body))
    batch = rig.execute({"x": X}, {"x": X})

    received = rig.hear(ResponsesFrame)
    (item,) = received.frame.items
    assert (item.position, item.is_final) == (0, True)
    assert value(answer_of(received, item)) == 1
    failure = rig.hear(BatchFailure).frame
    assert (failure.batch, failure.error.startswith(PREFIX)) == (batch, True)
    assert rig.hears_nothing()


def test_second_response_of_a_coupled_model_is_refused(worker):
    rig = worker(model("sender.send(response(), FINAL)\nreturn [response()]"))
    rig.execute({"x": X})
    rig.hear(ResponsesFrame)
    assert rig.hear(BatchFailure).frame.error == PREFIX + MORE_THAN_ONE


def test_sender_that_is_asked_for_too_late_is_closed(worker):
    rig = worker(
        """
class TritonPythonModel:
    kept = None
    def execute(self, requests):
        if self.kept is None:
            self.kept = requests[0]
        else:
            self.kept.get_response_sender().send(pb_utils.InferenceResponse([]), 1)
        return [pb_utils.InferenceResponse([]) for each in requests]
"""
    )
    rig.run({"x": X})
    (error,) = rig.run({"x": X})
    assert CLOSED in error


# Decoupled models


def test_decoupled_model_sends_any_number_of_responses(worker):
    rig = decoupled(
        worker,
        """
for number in range(20):
    sender.send(response(number))
sender.send(flags=FINAL)
""",
    )
    batch = rig.execute({"x": X})

    items, returned = items_until(rig, 21)
    assert [value(answer) for _, answer in items[:-1]] == list(range(20))
    assert [item.is_final for item, _ in items] == [False] * 20 + [True]
    assert items[-1][1] is None
    if not returned:
        assert rig.hear(ResponsesFrame).frame.returned_batch == batch


def test_responses_that_come_quickly_travel_together_but_the_first(worker):
    rig = decoupled(
        worker,
        """
for number in range(40):
    sender.send(response(number))
sender.send(response(), FINAL)
""",
    )
    rig.execute({"x": X})
    sizes = []
    while sum(sizes) < 41:
        sizes.append(len(rig.hear(ResponsesFrame).frame.items))

    assert sizes[0] == 1
    assert max(sizes) > 1


def test_response_that_is_held_leaves_soon(worker):
    rig = decoupled(
        worker,
        """
sender.send(response(1.0))
sender.send(response(2.0))
wait_until(sender.is_cancelled)
sender.send(flags=FINAL)
""",
    )
    batch = rig.execute({"x": X})

    items, _ = items_until(rig, 2)
    assert [value(answer) for _, answer in items] == [1, 2]
    rig.say(Cancel(batch, 0))
    items_until(rig, 1)


def test_errors_do_not_end_a_request(worker):
    rig = decoupled(
        worker,
        """
error = pb_utils.TritonError("no", pb_utils.TritonError.UNAVAILABLE)
sender.send(pb_utils.InferenceResponse(error=error))
sender.send(response(), FINAL)
""",
    )
    rig.execute({"x": X})
    (first, answer), (second, _) = items_until(rig, 2)[0]
    assert (answer, first.error_code, first.is_final) == ("no", 4, False)
    assert second.is_final


@pytest.mark.parametrize("has_sent", [False, True])
def test_decoupled_model_must_return_none(worker, has_sent):
    first = "senders[0].send(response(), FINAL)" if has_sent else "pass"
    rig = decoupled(worker, f"{first}\nreturn [response() for each in requests]")
    batch = rig.execute({"x": X}, {"x": X})

    if has_sent:
        items_until(rig, 1)
    failure = rig.hear(BatchFailure).frame
    assert failure.batch == batch
    assert failure.error == (
        f"{PREFIX}Python model 'm_0_0' is using the decoupled mode and the execute function must"
        " return None."
    )


def test_failed_call_closes_its_senders(worker):
    rig = decoupled(
        worker,
        """
self.senders = getattr(self, "senders", []) + senders
if len(self.senders) > 1:
    self.senders[0].send(response())
raise ValueError("stop")
""",
    )
    rig.execute({"x": X})
    rig.hear(BatchFailure)
    rig.execute({"x": X})
    assert CLOSED in rig.hear(BatchFailure).frame.error
