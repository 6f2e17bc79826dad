# SPDX-License-Identifier: Apache-2.0
"""How far ahead of its clients a decoupled batch may run."""

from __future__ import annotations

import pytest

from pytriton.base.dtypes import UINT8
from pytriton.base.errors import ErrorCode
from pytriton.runtime.backend.flow_control import OpenBatches
from pytriton.runtime.transport.credit import RESPONSE_WINDOW, RESPONSE_WINDOW_BYTES
from pytriton.runtime.transport.frames import Execute, ResponseItem
from pytriton.runtime.transport.payload import Received
from pytriton.runtime.transport.refs import TensorRef


def batch(requests=1):
    batches = OpenBatches(None, None, [], is_decoupled=True, is_batching=True)
    batches.describe = lambda batch, error: (str(error), ErrorCode.INTERNAL, None)
    made = batches.begin(Received(Execute(7, [1] * requests, []), bytearray(), 0, {}))
    made.open_windows()
    return made


def item(position=0, size=1):
    return ResponseItem(7, position, [TensorRef("y", UINT8.number, (size,), 0, size)], False)


def opened(requests=1):
    """A batch whose clients took their first response."""
    stream = batch(requests)
    for position in range(requests):
        stream.filter([item(position)])
        stream.credit(position, 1)
    return stream


def test_second_response_waits_until_the_first_was_taken():
    stream = batch()
    assert stream.may_send
    stream.filter([item()])
    assert not stream.may_send
    stream.credit(0, 1)

    assert stream.may_send


def test_window_closes_after_so_many_responses():
    stream = opened()
    for _ in range(RESPONSE_WINDOW):
        assert stream.may_send
        stream.filter([item()])

    assert not stream.may_send


def test_credit_opens_the_window_again():
    stream = opened()
    stream.filter([item()] * RESPONSE_WINDOW)
    stream.credit(0, 1)
    assert stream.may_send
    stream.filter([item()])

    assert not stream.may_send


@pytest.mark.parametrize("size", [RESPONSE_WINDOW_BYTES, 10 * RESPONSE_WINDOW_BYTES])
def test_response_of_any_size_may_be_sent_alone(size):
    stream = batch()
    stream.filter([item(size=size)])
    assert not stream.may_send
    stream.credit(0, 1)

    assert stream.may_send


def test_bytes_close_the_window_before_the_count_does():
    stream = opened()
    stream.filter([item(size=RESPONSE_WINDOW_BYTES // 2)])
    assert stream.may_send
    stream.filter([item(size=RESPONSE_WINDOW_BYTES // 2)])

    assert not stream.may_send


def test_more_credit_than_was_spent_is_no_gain():
    stream = batch()
    stream.filter([item()])
    stream.credit(0, 1000)
    stream.filter([item()] * RESPONSE_WINDOW)

    assert not stream.may_send


def test_slowest_client_decides():
    stream = opened(2)
    stream.filter([item(0), item(1)] * RESPONSE_WINDOW)
    stream.credit(0, 10)
    assert not stream.may_send

    stream.give_up(1)

    assert stream.may_send
    assert not stream.is_abandoned


def test_cancelled_request_is_answered_once_and_gets_no_more():
    stream = batch(2)
    stream.cancel(1)
    (answer,) = stream.give_up(1)
    assert (answer.position, answer.is_final, answer.error) == (1, True, "")
    assert answer.error_code == ErrorCode.CANCELLED
    assert stream.give_up(1) == []
    stream.credit(1, 5)

    assert [each.position for each in stream.filter([item(0), item(1)])] == [0]
    assert [each.position for each in stream.finish()] == [0]
    assert stream.is_abandoned


def test_end_is_said_to_every_open_request_once():
    stream = batch(3)
    ends = stream.finish(ValueError("broken"))

    assert [(each.position, each.is_final, each.error) for each in ends] == [
        (position, True, "broken") for position in range(3)
    ]
    assert stream.finish() == []
    assert stream.batches.open == {}


@pytest.mark.parametrize("end", [lambda stream: stream.finish(), lambda stream: stream.cancel(0)])
def test_batch_that_is_over_refers_to_nobody_who_waits(end):
    stream = batch()
    stream.on_credit = stream.leave
    stream.on_cancel = stream.give_up
    end(stream)

    assert (stream.on_cancel, stream.on_credit) == (None, None)
