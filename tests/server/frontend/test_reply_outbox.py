# SPDX-License-Identifier: Apache-2.0
"""How replies to a front end are gathered, and what happens if they cannot be sent."""

from __future__ import annotations

import pytest

from pytriton.base import dtypes
from pytriton.base.columns import Column
from pytriton.base.errors import UNEXPECTED, InternalError, UnavailableError
from pytriton.base.messages import InferResponse, InferTensor
from pytriton.runtime.transport.arena import Arena
from pytriton.runtime.transport.payload import Payload
from pytriton.serving.server.frontend.reply_outbox import ReplyOutbox
from tests.bursts import texts_burst
from tests.fakes import FakeClock, FakeLoop


class Channel:
    """Keeps the messages; refuses those that are longer than a limit."""

    def __init__(self):
        self.arena = Arena(64 << 20)
        self.sent = []
        self.failure = None
        self.longest = 10**9

    def payload(self):
        return Payload(self.arena)

    def send(self, frame, payload=None):
        if self.failure is not None and (payload is not None or len(frame.items) > self.longest):
            raise self.failure
        self.sent.append(frame)


class Scene:
    def __init__(self):
        self.loop = FakeLoop(FakeClock())
        self.channel = Channel()
        self.outbox = ReplyOutbox(self.channel, self.loop)

    @property
    def calls(self):
        return [[item.call for item in frame.items] for frame in self.channel.sent]


@pytest.fixture
def scene():
    return Scene()


def response(size=4):
    return InferResponse("m", "1", "", [InferTensor("x", dtypes.UINT8, (size,), bytes(size))])


def column(rows, row_bytes=4):
    data = memoryview(bytes(range(rows * row_bytes)))
    return Column("x", dtypes.UINT8, (row_bytes,), row_bytes, data)


def test_replies_of_one_iteration_are_one_message(scene):
    scene.outbox.add_response(1, response(), is_final=True)
    scene.outbox.add_error(2, InternalError("no"))
    scene.outbox.add_outdated(3)
    assert scene.channel.sent == []
    scene.loop.run()
    scene.outbox.add_response(4, None, is_final=True)
    scene.loop.run()

    assert scene.calls == [[1, 2, 3], [4]]
    _, error, outdated = scene.channel.sent[0].items
    assert (error.error, error.error_code, error.is_final) == ("no", InternalError.code, True)
    assert outdated.is_outdated


def test_many_replies_are_sent_before_the_end_of_the_iteration(scene):
    for call in range(200):
        scene.outbox.add_response(call, None, is_final=True)

    assert [len(calls) for calls in scene.calls] == [128]
    scene.loop.run()
    assert [len(calls) for calls in scene.calls] == [128, 72]


def test_many_bytes_are_sent_before_the_end_of_the_iteration(scene):
    for call in range(3):
        scene.outbox.add_response(call, response(20 << 10), is_final=True)
    sent_at_once = scene.calls
    scene.loop.run()

    assert sent_at_once == [[0, 1, 2]]
    assert scene.calls == sent_at_once


def test_large_tensors_do_not_count_as_bytes_of_the_message(scene):
    sizes = [scene.outbox.add_response(call, response(1 << 20), is_final=True) for call in (1, 2)]
    assert scene.channel.sent == []
    scene.loop.run()

    assert sizes == [1 << 20] * 2
    assert [item.outputs[0].block > 0 for item in scene.channel.sent[0].items] == [True, True]


def test_rows_of_a_batch_are_cut_out(scene):
    scene.outbox.add_rows(7, 2, 4, [column(5)], 1, 3)
    scene.loop.run()
    (item,) = scene.channel.sent[0].rows

    assert (item.call, item.first, item.end) == (7, 2, 4)
    assert (item.outputs[0].size, item.outputs[0].shape) == (12, (4,))


def test_items_can_be_sent_before_rows(scene):
    scene.outbox.flush_items()
    scene.outbox.add_rows(7, 0, 1, [column(1)], 0, 1)
    scene.outbox.flush_items()
    assert scene.channel.sent == []
    scene.outbox.add_outdated(8)
    scene.outbox.flush_items()

    assert scene.calls == [[8]]
    assert len(scene.channel.sent[0].rows) == 1


@pytest.mark.parametrize(
    "failure, text", [(UnavailableError("no room"), "no room"), (ValueError("odd"), UNEXPECTED)]
)
def test_replies_that_cannot_be_sent_become_errors(scene, failure, text):
    scene.channel.failure = failure
    scene.channel.longest = 128
    scene.outbox.add_response(1, response(), is_final=False)
    scene.outbox.add_response(2, response(), is_final=True, index=5)
    scene.outbox.add_outdated(3)
    scene.outbox.add_rows(4, 10, 400, [column(2)], 0, 2)
    scene.loop.run()

    items = [item for frame in scene.channel.sent for item in frame.items]
    assert [(item.call, item.index, item.is_final) for item in items[:3]] == [
        (1, -1, True),
        (2, 5, True),
        (3, -1, True),
    ]
    assert [item.error for item in items[:3]] == [text, text, None]
    assert items[2].is_outdated
    assert [(item.call, item.index) for item in items[3:]] == [(4, n) for n in range(10, 400)]


def test_response_without_memory_leaves_the_other_replies(scene):
    scene.channel.arena.limit_bytes = 0
    scene.outbox.add_response(1, response(), is_final=True)
    with pytest.raises(UnavailableError, match="no room for a tensor"):
        scene.outbox.add_response(2, response(1 << 20), is_final=True)
    scene.loop.run()

    assert scene.calls == [[1]]


def test_closed_outbox_sends_nothing(scene):
    scene.outbox.add_outdated(1)
    scene.outbox.close()
    scene.outbox.add_response(2, response(1 << 20), is_final=True)
    scene.outbox.add_rows(3, 0, 1, [column(1)], 0, 1)
    scene.outbox.add_error(4, InternalError("no"))
    scene.outbox.flush()
    scene.loop.run()

    assert scene.channel.sent == []
    assert scene.channel.arena.reserved_bytes == 0


def test_burst_is_one_reply(scene):
    scene.outbox.add_burst(7, texts_burst(["a", "bcd"]))
    scene.outbox.add_response(7, None, is_final=True)
    scene.loop.run()

    (frame,) = scene.channel.sent
    burst, end = frame.items
    assert (burst.burst, burst.is_final, end.burst, end.is_final) == (2, False, 0, True)
    assert [ref.pieces for ref in burst.outputs] == [[5, 7]]


def test_burst_that_cannot_be_sent_ends_its_request(scene):
    scene.channel.failure = UnavailableError("no room")
    scene.outbox.add_burst(7, texts_burst(["a", "bcd"]))
    scene.loop.run()

    ((item,),) = [frame.items for frame in scene.channel.sent]
    assert (item.call, item.is_final, item.burst) == (7, True, 0)


def test_closed_outbox_takes_no_burst(scene):
    scene.outbox.close()
    scene.outbox.add_burst(7, texts_burst(["a"]))
    scene.loop.run()

    assert scene.channel.sent == []


def test_reply_that_waits_for_no_others_takes_along_those_before_it(scene):
    scene.outbox.add_response(1, response(), is_final=True)
    scene.outbox.add_response(2, response(), is_final=True, at_once=True)

    assert scene.calls == [[1, 2]]
    scene.loop.run()
    assert scene.calls == [[1, 2]]
