# SPDX-License-Identifier: Apache-2.0
"""A channel of either kind on an event loop: nothing waits, and its loss is told once."""

from __future__ import annotations

import asyncio
import os
import struct
import time

import numpy as np
import pytest

from pytriton.base.dtypes import FP32
from pytriton.base.messages import DeviceUse
from pytriton.runtime.transport import loop_channel
from pytriton.runtime.transport.arena import MemoryTrimmer
from pytriton.runtime.transport.frames import BatchResult, Cancel, Execute, WorkerLogLine
from pytriton.runtime.transport.loop_channel import LoopChannel
from pytriton.runtime.transport.loop_spinner import DEVICE_SPIN_NS, SPIN_NS
from pytriton.runtime.transport.peer_account import ProtocolError
from pytriton.runtime.transport.refs import TensorRef
from tests.e2e.waiting import DEADLINE_S


class Rig:
    """An end on an event loop, the far end in the test's hands."""

    def __init__(self, channels, make_loop=asyncio.new_event_loop):
        ours, self.far = channels
        self.loop = make_loop()
        self.trimmer = MemoryTrimmer(self.loop, ours.arena)
        self.heard = []
        self.losses = []
        self.near = LoopChannel(
            ours,
            self.loop,
            self.trimmer,
            "peer",
            on_message=self.take,
            on_lost=self.losses.append,
        )
        self.near.start()

    def take(self, received):
        self.heard.append(received.frame)

    def until(self, condition):
        async def wait():
            end = time.monotonic() + DEADLINE_S
            while not condition():
                assert time.monotonic() < end
                await asyncio.sleep(0)

        self.loop.run_until_complete(wait())

    def turn(self, count=10):
        async def wait():
            for _ in range(count):
                await asyncio.sleep(0)

        self.loop.run_until_complete(wait())


@pytest.fixture
def rig(channels):
    made = Rig(channels)
    yield made
    made.near.close()
    made.trimmer.stop()
    made.loop.close()


@pytest.fixture
def uvloop_rig(channels):
    made = Rig(channels, pytest.importorskip("uvloop").new_event_loop)
    yield made
    made.near.close()
    made.trimmer.stop()
    made.loop.close()


@pytest.mark.parametrize("reads_ahead", [False, True])
def test_messages_come_in_order(rig, reads_ahead):
    rig.near.reads_ahead = reads_ahead
    for batch in range(100):
        rig.far.send(Cancel(batch, 0))
    rig.until(lambda: len(rig.heard) == 100)

    assert [frame.batch for frame in rig.heard] == list(range(100))


def test_loop_looks_for_a_second_message_less_often_while_there_is_none(rig):
    rig.near.reads_ahead = True
    receive = rig.near.channel.receive
    missed = []

    def count_misses():
        received = receive()
        if received is None:
            missed.append(len(rig.heard))
        return received

    rig.near.channel.receive = count_misses
    for batch in range(40):
        rig.far.send(Cancel(batch, 0))
        rig.until(lambda: len(rig.heard) > batch)  # noqa: B023  it is called in this iteration
        rig.turn()

    assert missed == [2, 5, 10, 19, 28, 37]


def test_loop_reads_several_messages_at_once_when_they_come_together_again(rig):
    rig.near.reads_ahead = True
    for batch in range(40):
        rig.far.send(Cancel(batch, 0))
        rig.until(lambda: len(rig.heard) > batch)  # noqa: B023  it is called in this iteration
    for batch in range(40, 80):
        rig.far.send(Cancel(batch, 0))
    readings = []
    on_readable = rig.near._on_readable
    rig.loop.remove_reader(rig.near.channel.fileno())
    rig.loop.add_reader(
        rig.near.channel.fileno(), lambda: (on_readable(), readings.append(len(rig.heard)))
    )
    rig.until(lambda: len(rig.heard) == 80)

    assert len(readings) <= 16


def test_sending_does_not_wait_and_the_rest_goes_when_there_is_room(rig):
    count = 0
    while not rig.near.channel.has_unsent:
        rig.near.send(Cancel(count, 0))
        count += 1
    rig.near.send(Cancel(count, 0))
    rig.far.set_blocking(False)
    got = []

    def read():
        while (received := rig.far.receive()) is not None:
            got.append(received.frame.batch)
        return len(got) == count + 1

    rig.until(read)

    assert got == list(range(count + 1))
    assert not rig.near.channel.has_unsent


def test_end_of_the_peer_is_told_once_after_what_it_said(rig):
    rig.far.send(Cancel(1, 0))
    rig.far.close()
    rig.until(lambda: rig.losses)
    rig.near.send(Cancel(2, 0))
    rig.turn()

    assert [frame.batch for frame in rig.heard] == [1]
    assert [type(error) for error in rig.losses] == [EOFError]
    assert rig.near.is_open


def test_loss_that_a_sender_finds_is_told_after_its_call(rig):
    rig.near._loop.remove_reader(rig.near.channel.fileno())  # nobody reads
    rig.far.close()
    for _ in range(3):
        rig.near.send(Cancel(1, 0))
    assert rig.losses == []
    rig.turn()

    (error,) = rig.losses
    assert isinstance(error, OSError)


def test_message_that_cannot_be_read_is_a_loss(rig, caplog):
    os.write(rig.far.fileno(), struct.pack("<I", 40) + b"\xff" * 40)
    rig.until(lambda: rig.losses)

    assert "peer: a message could not be read" in caplog.text
    assert not isinstance(rig.losses[0], OSError | EOFError)


@pytest.mark.parametrize("is_over", [False, True], ids=["open", "read to its end"])
def test_mistake_of_the_receiver_is_logged_and_the_connection_goes_on(rig, caplog, is_over):
    def fail_once(received):
        rig.near._on_message = rig.take
        raise KeyError("no")

    rig.near._on_message = fail_once
    rig.far.send(Cancel(1, 0))
    rig.far.send(Cancel(2, 0))
    if is_over:
        rig.near.read_to_end()
    rig.until(lambda: rig.heard)

    assert [frame.batch for frame in rig.heard] == [2]
    assert rig.losses == []
    (record,) = caplog.records
    assert record.exc_info[0] is KeyError
    assert record.getMessage() == (
        "peer: unexpected error in the server while it processed a message (Cancel)"
    )


def test_message_that_contradicts_earlier_ones_is_a_loss(rig):
    def refuse(received):
        raise ProtocolError("no")

    rig.near._on_message = refuse
    rig.far.send(Cancel(1, 0))
    rig.until(lambda: rig.losses)

    assert isinstance(rig.losses[0], ProtocolError)


def test_frame_that_cannot_be_encoded_is_the_callers_error(rig):
    with pytest.raises(UnicodeEncodeError):
        rig.near.send(WorkerLogLine("INFO", "\udcff", "f", 1))
    rig.near.send(Cancel(3, 0))

    assert rig.far.receive().frame.batch == 3


def test_last_words_can_be_read_after_the_loss(rig):
    rig.near.stop_watching()
    rig.far.send(Cancel(1, 0))
    rig.far.send(Cancel(2, 0))
    rig.far.close()
    rig.turn()
    assert rig.heard == []
    rig.near.read_to_end()

    assert [frame.batch for frame in rig.heard] == [1, 2]
    assert rig.losses == []


def test_last_words_end_with_the_first_that_breaks_a_rule(rig, caplog):
    def refuse(received):
        rig.take(received)
        if received.frame.batch == 2:
            raise ProtocolError("no")

    rig.near._on_message = refuse
    rig.near.stop_watching()
    for batch in (1, 2, 3):
        rig.far.send(Cancel(batch, 0))
    rig.far.close()
    rig.near.read_to_end()
    rig.near.read_to_end()

    assert [frame.batch for frame in rig.heard] == [1, 2]
    (record,) = caplog.records
    assert record.getMessage() == "peer: a message could not be read, which ends it: no"


def test_closed_channel_tells_nothing(rig):
    rig.far.send(Cancel(1, 0))
    rig.near.close()
    rig.near.close()
    rig.near.send(Cancel(1, 0))
    rig.turn()

    assert (rig.heard, rig.losses) == ([], [])
    assert not rig.near.is_open


def test_dropped_segments_are_told_even_where_a_peer_is_gone(rig):
    rig.far.close()
    rig.near.drop_segments([1, 2])
    rig.until(lambda: rig.losses)
    rig.turn()

    assert len(rig.losses) == 1


def test_tensors_in_both_directions_keep_the_timer_running(rig):
    def send(channel):
        payload = channel.payload()
        data = bytes(1 << 17)
        block, offset = payload.add([data], len(data))
        ref = TensorRef("x", FP32.number, (1 << 15,), offset, len(data), block)
        frame = Execute(1, [1], [ref])
        if channel is rig.near.channel:
            rig.near.send(frame, payload)
        else:
            channel.send(frame, payload)
        return block

    uses_memory = bool(send(rig.near.channel))
    assert (rig.trimmer._timer is not None) == uses_memory
    rig.trimmer.stop()
    rig.far.receive()
    send(rig.far)
    rig.until(lambda: rig.heard)

    assert (rig.trimmer._timer is not None) == uses_memory
    assert np.prod(rig.heard[0].inputs[0].shape) == 1 << 15


class FakeSpinner:
    """Takes note of the frames after which the loop is asked to poll."""

    def __init__(self):
        self.policies = []
        self.times_ns = []

    def spin_soon(self, policy, spin_ns):
        self.policies.append(policy)
        self.times_ns.append(spin_ns)


@pytest.fixture
def spinner(monkeypatch):
    spinner = FakeSpinner()
    monkeypatch.setattr(loop_channel, "make_spinner", lambda _: spinner)
    return spinner


def test_loop_polls_for_the_answer_to_a_lone_request_and_then_for_the_next_request(spinner, rig):
    rig.near.send(Execute(1, [1], []))
    asked_after_sending = len(spinner.policies)
    rig.far.receive()
    rig.far.send(BatchResult(1, 0, 0, []))
    rig.until(lambda: rig.heard)

    assert asked_after_sending == 1
    assert len(set(spinner.policies)) == len(spinner.policies) == 2
    assert spinner.times_ns == [SPIN_NS, SPIN_NS]


def test_loop_polls_longer_for_requests_with_gpu_memory(spinner, rig):
    rig.near.send(Execute(1, [1], [], devices={0: DeviceUse({}, {})}))
    rig.far.receive()
    rig.far.send(BatchResult(1, 0, 0, []))
    rig.until(lambda: rig.heard)

    assert spinner.times_ns == [DEVICE_SPIN_NS, DEVICE_SPIN_NS]


def test_loop_does_not_poll_while_several_requests_run_together(spinner, rig):
    rig.near.send(Execute(1, [1, 1], []))
    rig.near.send(Cancel(1, 0))
    rig.far.receive()
    rig.far.send(BatchResult(1, 0, 0, []))
    rig.until(lambda: rig.heard)

    assert spinner.policies == []


def test_closed_channel_keeps_no_spinner(spinner, rig):
    """A spinner has a descriptor, and whoever takes the messages may keep the channel."""
    rig.near.close()

    assert rig.near._spinner is None


@pytest.mark.parametrize("reads_ahead", [False, True])
def test_loss_of_a_peer_that_did_not_read_is_reported(uvloop_rig, reads_ahead):
    rig = uvloop_rig
    rig.near.reads_ahead = reads_ahead
    rig.near.send(Cancel(0, 0))
    for batch in range(3):
        rig.far.send(Cancel(batch, 0))
    rig.far.close()
    rig.until(lambda: rig.losses)
    rig.near.read_to_end()

    assert [type(each) for each in rig.losses] == [EOFError]
    assert [frame.batch for frame in rig.heard] == [0, 1, 2]
