# SPDX-License-Identifier: Apache-2.0
"""The server's end of an instance when sending goes wrong; the contract suite has the rest."""

from __future__ import annotations

import asyncio

import pytest

from pytriton.base.dtypes import UINT8
from pytriton.base.errors import InternalError, UnavailableError
from pytriton.base.messages import InferTensor, TraceContext
from pytriton.runtime.executor.channel_instance import ChannelInstance
from pytriton.runtime.executor.inference import ModelLabels, burst_outcomes
from pytriton.runtime.transport.arena import SEGMENT_BYTES, Arena, MemoryTrimmer
from pytriton.runtime.transport.frames import (
    Credit,
    Execute,
    ResponseItem,
    ResponsesFrame,
    WorkerLogLine,
)
from pytriton.runtime.transport.link import socket_pair
from pytriton.runtime.transport.memory_channel import MemoryChannel
from tests.fakes import inference


class Rig:
    """An instance, the far end of its channel in the test's hands, and what the owner heard."""

    costs = None  # of batches: nobody asks for them here

    def __init__(self, limit_bytes: int = 4 * SEGMENT_BYTES) -> None:
        self.loop = asyncio.new_event_loop()
        self.events: list[object] = []
        memory = MemoryTrimmer(self.loop)
        memory.arena = Arena(limit_bytes)
        ours, theirs = socket_pair()
        self.far = MemoryChannel(theirs, Arena())
        labels = ModelLabels("m", "1", ["x"], batching=True)
        channel = MemoryChannel(ours, memory.arena)
        self.instance = ChannelInstance("m_0_0", labels, channel, memory, self.loop, self, 4)
        self.instance.start()

    def on_outcomes(self, instance, batch, outcomes, times_ns):
        self.events += outcomes

    def on_burst(self, instance, batch, position, burst, times_ns):
        self.on_outcomes(instance, batch, burst_outcomes(position, burst), times_ns)

    def on_unavailable(self, instance):
        assert not instance.free_slots

    def on_died(self, instance, reason):
        self.events.append(reason)

    def execute(self, size=4, **fields):
        tensor = InferTensor("x", UINT8, (1, size), bytes(size))
        sent = inference(inputs={"x": tensor}, **fields)
        self.instance.execute([sent], 0)
        return sent

    def turn(self, count=5):
        """Let the loop do what is due."""

        async def wait():
            for _ in range(count):
                await asyncio.sleep(0)

        self.loop.run_until_complete(wait())

    def close(self):
        self.instance.stop()
        self.far.close()
        self.loop.close()


@pytest.fixture
def rig():
    made = Rig()
    yield made
    made.close()


def test_batch_without_room_is_refused_and_takes_no_slot(rig):
    with pytest.raises(UnavailableError, match="no room for a tensor"):
        rig.execute(5 * SEGMENT_BYTES)

    assert rig.instance.free_slots == 4
    assert rig.instance.is_idle


@pytest.mark.parametrize("size", [100_000, 200_000, 5_000_000])
def test_large_header_needs_no_shared_memory(rig, size):
    parameters = {"text": "x" * size}
    rig.execute(parameters=parameters)
    rig.far.set_blocking(False)
    while (received := rig.far.receive()) is None:
        rig.turn(1)

    assert received.frame.parameters == {0: parameters}
    assert rig.instance._channel.channel.reserved_bytes == 0


def test_what_cannot_be_encoded_is_refused_and_takes_no_slot(rig):
    with pytest.raises(OverflowError):
        rig.execute(4, parameters={"number": 2**70})

    assert rig.instance.free_slots == 4


class Trace:
    """Tells what it was asked for."""

    def contexts(self, first, end, *, is_model_file):
        return [(first, TraceContext("of a model.py" if is_model_file else "of a callable", "a=b"))]


def test_span_of_a_traced_request_goes_along(rig):
    rig.execute(trace=Trace())
    rig.execute()

    traced, untraced = (rig.far.receive().frame for _ in range(2))
    assert traced.traces == {0: TraceContext("of a callable", "a=b")}
    assert untraced.traces == {}


def test_batch_sent_to_a_process_that_is_gone_fails_after_the_call(rig):
    rig.far.close()
    rig.execute()
    rig.execute()
    assert rig.events == []

    rig.turn()

    first, second, died = rig.events
    assert isinstance(first.error, InternalError)
    assert isinstance(second.error, InternalError)
    assert died == "its process ended"
    assert rig.instance.free_slots == 0


def test_messages_to_a_busy_process_wait_in_order(rig):
    sent = rig.execute()
    for count in range(5000):
        rig.instance.grant(sent, count + 1)
    rig.turn()

    received = [rig.far.receive().frame]
    while len(received) <= 5000:
        received.append(rig.far.receive().frame)
        rig.turn(1)

    assert isinstance(received[0], Execute)
    assert received[1:] == [Credit(1, 0, count + 1) for count in range(5000)]


def test_process_that_goes_while_messages_wait_is_noticed(rig):
    sent = rig.execute()
    for _ in range(5000):
        rig.instance.grant(sent, 1)
    rig.far.close()
    rig.turn()

    assert len(rig.events) == 2
    assert rig.events[1] == "its process ended"


def test_answers_that_came_before_sending_failed_are_passed_on(rig):
    answered, open_ = rig.execute(), rig.execute()
    rig.far.send(ResponsesFrame(0, 0, [ResponseItem(answered.batch_id, 0, [])]))
    rig.far.close()
    rig.instance.grant(open_, 1)  # before the loop has read anything
    rig.loop.call_soon(rig.instance.cancel, open_)
    rig.instance._channel._report_lost(BrokenPipeError())
    answer, lost, death = rig.events

    assert answer.error is None
    assert lost.error is not None
    assert death == "its process ended"


def test_frame_that_is_no_answer_ends_the_instance(rig, caplog):
    rig.execute()
    rig.far.send(WorkerLogLine("INFO", "hello", "model.py", 3))
    rig.turn()

    assert rig.events[1] == "its answer could not be read"
    assert "expected an answer, got a frame WorkerLogLine" in caplog.text


def test_request_that_is_over_is_neither_cancelled_nor_granted(rig):
    sent = rig.execute()
    rig.far.receive()
    rig.far.send(ResponsesFrame(0, 0, [ResponseItem(1, 0)]))
    rig.turn()
    assert rig.instance.is_idle
    rig.instance.cancel(sent)
    rig.instance.grant(sent, 1)
    rig.execute()

    assert isinstance(rig.far.receive().frame, Execute)


def test_response_after_the_end_is_dropped(rig):
    rig.instance.execute([inference(), inference()], 0)
    items = [ResponseItem(1, 0), ResponseItem(1, 0, [], False), ResponseItem(1, 0)]
    rig.far.send(ResponsesFrame(0, 0, items))
    rig.turn()

    assert [(outcome.position, outcome.is_final) for outcome in rig.events] == [(0, True)]
    assert not rig.instance.is_idle


def test_batch_for_an_instance_that_has_ended_is_refused(rig):
    rig.instance.stop()

    with pytest.raises(InternalError, match="the instance is gone, the model was unloaded"):
        rig.execute()

    assert rig.instance.is_idle
