# SPDX-License-Identifier: Apache-2.0
"""Credit, cancellation and requests that are executed again."""

from __future__ import annotations

import numpy as np

from pytriton.runtime.transport.credit import RESPONSE_WINDOW_BYTES
from pytriton.runtime.transport.frames import BatchFailure, Cancel, Credit
from tests.python_backend.sender_models import decoupled, items_until, model, value

X = np.array([[1.0]], np.float32)


# Credit and cancellation


def test_send_waits_for_large_responses_to_be_taken(worker):
    size = RESPONSE_WINDOW_BYTES // 8
    rig = decoupled(worker, f"for number in range(4): sender.send(response(number, {size}))")
    batch = rig.execute({"x": X})

    items_until(rig, 2)
    assert rig.hears_nothing()
    rig.say(Credit(batch, 0, 1))
    items_until(rig, 1)


def test_only_the_cancelled_request_is_cancelled(worker):
    rig = worker(
        model(
            """
wait_until(requests[1].is_cancelled)
assert senders[1].is_cancelled() and not senders[0].is_cancelled()
return [response() for _ in senders]
"""
        )
    )
    batch = rig.execute({"x": X}, {"x": X})
    rig.say(Cancel(batch, 1))
    assert value(rig.answers(batch, 2)[0]) == 1


# Rescheduling


def test_request_asks_to_be_executed_again(worker):
    rig = worker(model("requests[0].set_release_flags(2)\nreturn [None, response()]"))
    first, second = rig.run({"x": X}, {"x": X})
    assert (first, value(second)) == ("rescheduled", 1)


def test_decoupled_request_is_answered_and_executed_again(worker):
    rig = decoupled(worker, "sender.send(response())\nrequests[0].set_release_flags(2)")
    batch = rig.execute({"x": X})

    ((item, answer), (last, _)), returned = items_until(rig, 2)
    assert (value(answer), item.is_final) == (1, False)
    assert (last.is_rescheduled, last.is_final, returned) == (True, True, [batch])


def test_failed_request_is_not_executed_again(worker):
    rig = worker(model("requests[0].set_release_flags(2)\nraise ValueError()"))
    rig.execute({"x": X})
    rig.hear(BatchFailure)

    assert rig.hears_nothing()
