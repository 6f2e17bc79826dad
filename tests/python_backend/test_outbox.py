# SPDX-License-Identifier: Apache-2.0
"""One writer for many threads, and for finalizers that interrupt it."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from pytriton.errors import UnavailableError
from pytriton.pb_utils.tensor import Tensor
from pytriton.python_backend.outbox import MAX_HELD, Outbox
from pytriton.python_backend.placing import place
from pytriton.transport.arena import Arena
from pytriton.transport.channel import Channel
from pytriton.transport.frames import Notes, ResponseItem, Responses
from pytriton.transport.link import socket_pair
from pytriton.transport.worker_frames import LogLine

DEADLINE_S = 30.0


@pytest.fixture
def far():
    ours, theirs = socket_pair()
    theirs.settimeout(DEADLINE_S)
    far = Channel(theirs, Arena())
    far.outbox = Outbox(Channel(ours, Arena(limit_bytes=64 << 20)))
    yield far
    far.outbox.close()
    far.outbox.channel.close()
    far.close()


def line(text):
    return LogLine("INFO", text, "f", 1)


def item(number):
    return lambda payload: ResponseItem(number, 0, is_final=False)


def test_finalizer_in_the_middle_of_a_message_is_heard_after_it(far):
    def make(payload):
        far.outbox.post(line("second"))  # as if memory were collected now
        return line("first")

    far.outbox.send(make)
    assert [far.receive().frame.message for _ in range(2)] == ["first", "second"]


def test_what_was_posted_goes_before_what_is_sent(far):
    with far.outbox._turn:
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
    far.outbox.send(lambda payload: Responses(0, 0, [], returned_batch=7))
    frames = [far.receive().frame for _ in range(3)]
    assert [frame.returned_batch for frame in frames] == [0, 0, 7]


def test_tensor_without_room_is_refused_and_others_are_not(far):
    large = Tensor("y", np.zeros(100 << 20, np.uint8))
    with pytest.raises(UnavailableError, match="no room"):
        far.outbox.send(lambda p: Responses(0, 0, [ResponseItem(1, 0, [place(p, large)])]))
    far.outbox.send(lambda payload: Notes())
    assert isinstance(far.receive().frame, Notes)


def test_threads_do_not_mix_up_their_tensors(far):
    def work(number):
        tensor = Tensor("y", np.full(20_000, number, np.float32))
        for _ in range(20):
            far.outbox.respond(
                lambda payload: ResponseItem(number, 0, [place(payload, tensor)]), 0, at_once=True
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
        far.outbox.send(lambda payload: Notes())
