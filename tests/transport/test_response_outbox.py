# SPDX-License-Identifier: Apache-2.0
"""One writer for many threads, and for finalizers that interrupt it."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from pytriton.base.errors import UnavailableError
from pytriton.base.messages import DeviceExport
from pytriton.runtime.pb_utils.tensor import Tensor
from pytriton.runtime.python_backend.answers import add_tensor
from pytriton.runtime.transport.frames import (
    MemoryFrame,
    ResponseItem,
    ResponsesFrame,
    WorkerLogLine,
)
from pytriton.runtime.transport.response_outbox import MAX_HELD
from tests.e2e.waiting import DEADLINE_S


def line(text):
    return WorkerLogLine("INFO", text, "f", 1)


def item(number):
    return lambda payload: ResponseItem(number, 0, is_final=False)


def test_finalizer_in_the_middle_of_a_message_is_heard_after_it(far):
    def make(payload):
        far.outbox.post(line("second"))  # as if memory were collected now
        return line("first")

    far.outbox.send(make)
    assert [far.receive().frame.message for _ in range(2)] == ["first", "second"]


def test_what_was_posted_goes_before_what_is_sent(far):
    with far.outbox._send_lock:
        far.outbox.post(line("first"))
    far.outbox.send(lambda payload: line("second"))
    assert [far.receive().frame.message for _ in range(2)] == ["first", "second"]


def test_responses_are_held_and_sent_in_order(far):
    far.outbox.respond(item(0), 0, at_once=True)
    for number in range(1, MAX_HELD + 2):
        far.outbox.respond(item(number), 0, at_once=False)
    numbers, messages = [], 0
    while len(numbers) < MAX_HELD + 2:
        numbers += [each.batch for each in far.receive().frame.items]
        messages += 1
    assert numbers == list(range(MAX_HELD + 2))
    assert messages < MAX_HELD + 2


def test_held_response_goes_without_another_call(far):
    far.outbox.respond(item(1), 0, at_once=True)
    far.outbox.respond(item(2), 0, at_once=False)
    assert [far.receive().frame.items[0].batch for _ in range(2)] == [1, 2]


def test_frame_is_sent_after_held_responses(far):
    far.outbox.respond(item(1), 0, at_once=True)
    far.outbox.respond(item(2), 0, at_once=False)
    far.outbox.send(lambda payload: ResponsesFrame(0, 0, [], returned_batch=7))
    frames = [far.receive().frame for _ in range(3)]
    assert [frame.returned_batch for frame in frames] == [0, 0, 7]


def test_tensor_without_room_is_refused_and_others_are_not(far):
    large = Tensor("y", np.zeros(100 << 20, np.uint8))
    with pytest.raises(UnavailableError, match="no room"):
        far.outbox.send(
            lambda p: ResponsesFrame(0, 0, [ResponseItem(1, 0, [add_tensor(p, large)])])
        )
    far.outbox.send(lambda payload: MemoryFrame())
    assert isinstance(far.receive().frame, MemoryFrame)


def test_threads_do_not_mix_up_their_tensors(far):
    def work(number):
        tensor = Tensor("y", np.full(20_000, number, np.float32))
        for _ in range(20):
            far.outbox.respond(
                lambda payload: ResponseItem(number, 0, [add_tensor(payload, tensor)]),
                0,
                at_once=True,
            )

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(80):
        received = far.receive()
        (only,) = received.frame.items
        assert (received.array(only.outputs[0]) == only.batch).all()
    for thread in threads:
        thread.join(DEADLINE_S)


def test_posting_without_a_server_is_no_error(far):
    far.close()
    far.outbox.post(line("unheard"))
    with pytest.raises(BrokenPipeError):
        far.outbox.send(lambda payload: MemoryFrame())


def bad_item(number):
    return lambda payload: ResponseItem(number, 0, is_final=False, parameters={"a": "\udcff"})


def received_items(far, count):
    items = []
    while len(items) < count:
        items += far.receive().frame.items
    return items


def test_response_that_cannot_be_encoded_is_an_error_of_its_own(far, caplog):
    far.outbox.respond(item(0), 0, at_once=True)
    with far.outbox._send_lock:  # the helper waits, so that all are sent together
        far.outbox._items = [make(None) for make in (item(1), bad_item(2), item(3))]
        far.outbox._flush()
    items = received_items(far, 4)

    assert [each.batch for each in items] == [0, 1, 2, 3]
    assert [each.error is None for each in items] == [True, True, False, True]
    assert "UnicodeEncodeError" in items[2].error
    assert "could not be sent" in caplog.text


def test_response_that_cannot_be_encoded_says_which_gpu_memory_it_had(far):
    export = DeviceExport(5, 4, 0)
    bad = bad_item(1)(None)
    bad.device = {"y": export}
    with far.outbox._send_lock:
        far.outbox._items = [bad]
        far.outbox._flush()
    (item,) = received_items(far, 1)

    assert item.error is not None
    assert item.device == {"y": export}


def test_helper_survives_what_it_cannot_send(far, caplog):
    far.outbox.respond(item(0), 0, at_once=True)
    far.outbox.respond(bad_item(1), 0, at_once=False)
    assert "UnicodeEncodeError" in received_items(far, 2)[1].error
    far.outbox.respond(item(2), 0, at_once=True)
    far.outbox.respond(item(3), 0, at_once=False)

    assert [each.batch for each in received_items(far, 2)] == [2, 3]
    assert far.outbox._helper is None or far.outbox._helper.is_alive()


def test_held_response_of_another_does_not_fail_a_frame(far, caplog):
    with far.outbox._send_lock:
        far.outbox._items = [bad_item(1)(None)]
    far.outbox.send(lambda payload: ResponsesFrame(0, 0, [], returned_batch=7))

    assert "UnicodeEncodeError" in far.receive().frame.items[0].error
    assert far.receive().frame.returned_batch == 7


def test_posted_frame_that_cannot_be_encoded_is_logged_and_dropped(far, caplog):
    far.outbox.post(line("\udcff"))
    far.outbox.post(line("next"))

    assert far.receive().frame.message == "next"
    assert "a message could not be sent: 'WorkerLogLine'" in caplog.text


def test_large_responses_need_no_shared_memory(far):
    far.outbox.channel.arena.limit_bytes = 0
    large = ResponseItem(1, 0, is_final=False, parameters={"text": "x" * 200_000})
    far.outbox.add(lambda payload: [large, ResponseItem(2, 0)], 0)
    far.outbox.flush()

    assert received_items(far, 2) == [large, ResponseItem(2, 0)]


def test_added_responses_travel_in_one_message(far):
    far.outbox.add(lambda payload: [ResponseItem(1, 0)], 7)
    far.outbox.add(lambda payload: [ResponseItem(1, 1), ResponseItem(1, 2)], 9)
    assert len(far.outbox) == 3
    far.outbox.flush()
    far.outbox.flush()
    frame = far.receive().frame

    assert [each.position for each in frame.items] == [0, 1, 2]
    assert frame.started_ns == 7
    assert len(far.outbox) == 0


def test_added_responses_leave_without_another_call(far):
    for position in range(3):
        far.outbox.add(lambda payload, at=position: [ResponseItem(1, at)], 7)
        far.outbox.hold()
        assert received_items(far, 1)[0].position == position


@pytest.mark.parametrize("end", ["server", "outbox"])
def test_helper_ends_quietly(far, caplog, end):
    if end == "server":
        far.close()
    far.outbox.add(lambda payload: [ResponseItem(1, 0)], 7)
    far.outbox.hold()
    helper = far.outbox._helper
    if end == "outbox":
        far.outbox.close()
    helper.join(DEADLINE_S)

    assert not helper.is_alive()
    assert caplog.text == ""


def test_responses_are_not_held_if_no_thread_can_send_them_later(far, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    outbox = far.outbox
    for number in (1, 2):
        outbox.respond(item(number), 0, at_once=False)
    outbox.add(lambda payload: [ResponseItem(3, 0, is_final=False)], 0)
    outbox.hold()
    sent = [far.receive().frame for _ in range(3)]

    assert [[each.batch for each in frame.items] for frame in sent] == [[1], [2], [3]]
    monkeypatch.undo()
    outbox.respond(item(4), 0, at_once=False)  # and later threads can be started again
    assert [each.batch for each in far.receive().frame.items] == [4]
