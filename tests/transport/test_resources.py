# SPDX-License-Identifier: Apache-2.0
"""A process without descriptors or memory loses a tensor, not its connection, and recovers."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading

import numpy as np
import pytest

from pytriton.base.dtypes import FP32
from pytriton.base.errors import ErrorCode, UnavailableError
from pytriton.runtime.transport.arena import SEGMENT_BYTES, Arena
from pytriton.runtime.transport.frames import Cancel, Execute, MemoryFrame
from pytriton.runtime.transport.link import MAX_PACKET_BYTES, make_link, socket_pair
from pytriton.runtime.transport.memory import PORTABLE_SETTING
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.refs import TensorRef
from pytriton.runtime.transport.stream_channel import StreamChannel
from tests.resource_limits import little_memory, no_descriptors, open_descriptors

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit and /proc")

MIB = 1 << 20
NO_DESCRIPTORS = "the server has no file descriptors left"


@pytest.fixture(params=["native", "portable"])
def make_ends(request, monkeypatch):
    """Makes pairs of channels of each kind."""
    monkeypatch.setenv(PORTABLE_SETTING, "1" if request.param == "portable" else "0")
    opened = []

    def make(**settings):
        left, right = socket_pair()
        pair = MemoryChannel(left, Arena()), MemoryChannel(right, Arena(), **settings)
        opened.extend(pair)
        return pair

    yield make
    for channel in opened:
        channel.close()


@pytest.fixture
def ends(make_ends):
    return make_ends()


def add(payload, array):
    block, offset = payload.add([memoryview(array).cast("B")], array.nbytes)
    return TensorRef("x", FP32.number, array.shape, offset, array.nbytes, block)


def send(channel, batch, *arrays):
    payload = channel.payload()
    refs = [add(payload, array) for array in arrays]
    channel.send(Execute(batch, [1], refs), payload)


def numbers(value, size=MIB):
    return np.full(size, value, np.float32)


def check_unread(received, batch, reason=NO_DESCRIPTORS):
    """The frame tells to which batch the error belongs."""
    assert received.frame.batch == batch
    with pytest.raises(UnavailableError, match=reason) as raised:
        received.array(received.frame.inputs[0])
    assert raised.value.code is ErrorCode.UNAVAILABLE


def check_read(channel, batch, value):
    received = channel.receive()
    assert received.frame.batch == batch
    array = received.array(received.frame.inputs[0])
    assert array[0] == array[-1] == value


def exchange_updates(left, right):
    right.send(MemoryFrame())
    left.receive()


# Descriptors


@pytest.mark.parametrize("spare", [0, 1], ids=["not received", "not mapped"])
def test_tensor_without_descriptors_is_lost_and_the_next_one_is_read(ends, spare):
    if spare and sys.version_info >= (3, 13):
        pytest.skip("mmap needs no descriptor of its own")
    left, right = ends
    send(left, 1, numbers(1))
    before = open_descriptors()
    with no_descriptors(spare=spare):
        received = right.receive()

    check_unread(received, 1)
    assert open_descriptors() == before
    del received
    exchange_updates(left, right)
    assert left.tracker.lent_count == 0
    send(left, 2, numbers(2))
    check_read(right, 2, 2)


def test_messages_sent_before_the_loss_is_known_are_lost_too(ends):
    left, right = ends
    send(left, 1, numbers(1))
    send(left, 2, numbers(2))
    with no_descriptors():
        received = right.receive()

    check_unread(received, 1)
    check_unread(right.receive(), 2)
    exchange_updates(left, right)
    assert left.tracker.lent_count == 0
    for batch in (3, 4):
        send(left, batch, numbers(batch))
        check_read(right, batch, batch)
    assert right.tracker.mapped_count == 1


def test_segment_that_is_known_stays_readable_without_descriptors(ends):
    left, right = ends
    send(left, 1, numbers(1))
    check_read(right, 1, 1)
    send(left, 2, numbers(2), numbers(3, SEGMENT_BYTES // 4))
    with no_descriptors():
        received = right.receive()

    first, second = received.frame.inputs
    assert received.array(first)[0] == 2
    with pytest.raises(UnavailableError, match=NO_DESCRIPTORS):
        received.array(second)


def test_loss_is_told_while_messages_cross(ends):
    left, right = ends
    for batch in range(1, 4):
        send(left, batch, numbers(batch))
        with no_descriptors():
            received = right.receive()
        check_unread(received, batch)
        exchange_updates(left, right)
    send(left, 4, numbers(4))
    check_read(right, 4, 4)

    assert left.arena.reserved_bytes == SEGMENT_BYTES


def test_segment_that_was_dropped_meanwhile_is_forgotten(ends):
    left, right = ends
    send(left, 1, numbers(1))
    with no_descriptors():
        check_unread(right.receive(), 1)
    exchange_updates(left, right)
    left.trim(0.0)
    send(left, 2, numbers(2))
    check_read(right, 2, 2)

    assert right.tracker.mapped_count == 1


def test_block_of_a_third_process_is_sent_again(make_ends):
    front, core = make_ends(to_front_end=True)
    (to_worker, worker) = make_ends()
    for batch in (1, 2):
        send(front, batch, numbers(batch))
        received = core.receive()
        payload = to_worker.payload()
        block, offset = payload.add([received.buffer(received.frame.inputs[0])], 4 * MIB)
        ref = TensorRef("x", FP32.number, (MIB,), offset, 4 * MIB, block)
        to_worker.send(Execute(batch, [1], [ref]), payload)
        assert to_worker.arena.reserved_bytes == 0
        del received, payload
        if batch == 1:
            with no_descriptors():
                check_unread(worker.receive(), 1)
            exchange_updates(to_worker, worker)
            assert to_worker.tracker.lent_count == 0
    check_read(worker, 2, 2)


def test_sender_without_descriptors_fails_and_sends_later(ends):
    left, right = ends
    with no_descriptors(), pytest.raises(UnavailableError, match=NO_DESCRIPTORS):
        send(left, 1, numbers(1))
    send(left, 2, numbers(2))

    check_read(right, 2, 2)


# Links


@pytest.fixture(params=[socket.SOCK_SEQPACKET, socket.SOCK_STREAM], ids=["seqpacket", "stream"])
def links(request):
    left, right = map(make_link, socket.socketpair(socket.AF_UNIX, request.param))
    yield left, right
    left.close()
    right.close()


def test_descriptors_of_later_messages_are_told_from_those_that_are_missing(links):
    left, right = links
    read, write = os.pipe()
    left.send(b"one", [read, read, read])
    with no_descriptors(spare=1):
        assert right.receive() == b"one"
    left.send(b"two", [write])
    assert right.receive() == b"two"

    before = open_descriptors()
    with pytest.raises(UnavailableError, match=NO_DESCRIPTORS):
        right.take_descriptors(3)
    assert len(before - open_descriptors()) == 1  # that which came
    (taken,) = right.take_descriptors(1)
    assert os.path.sameopenfile(taken, write)
    for descriptor in (taken, read, write):
        os.close(descriptor)


@pytest.mark.parametrize("size", [-1, 0, 1])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_message_of_several_packets_arrives_whole(links, size, count):
    left, right = links
    left.socket.setblocking(False)
    read, write = os.pipe()
    sent = os.urandom(count * MAX_PACKET_BYTES + size)
    left.send(sent, [read])
    left.send(b"after")
    messages = []
    while len(messages) < 2:
        left.flush()
        if (message := right.receive(socket.MSG_DONTWAIT)) is not None:
            messages.append(message)

    assert messages[0][: len(sent)] == sent
    assert len(messages[0]) <= len(sent) + 1
    assert messages[1] == b"after"
    (taken,) = right.take_descriptors(1)
    for descriptor in (taken, read, write):
        os.close(descriptor)


def test_end_within_a_message_is_the_end(links):
    left, right = links
    left.socket.setblocking(False)
    left.send(bytes(20 * MAX_PACKET_BYTES))
    left.close()
    message = right.receive()

    assert message == b""


# Memory


def test_tensor_without_room_to_map_it_is_lost_and_the_next_one_is_read(ends):
    left, right = ends
    send(left, 1, numbers(1, 16 * MIB))
    with little_memory(32 * MIB):
        received = right.receive()

    check_unread(received, 1, "the server has no memory left")
    exchange_updates(left, right)
    assert left.tracker.lent_count == 0
    send(left, 2, numbers(2, 16 * MIB))
    check_read(right, 2, 2)


def test_sender_without_memory_fails_and_sends_later(ends):
    left, right = ends
    large = numbers(1, 16 * MIB)
    with little_memory(32 * MIB), pytest.raises(UnavailableError, match="no memory left"):
        send(left, 1, large)
    send(left, 2, large)

    check_read(right, 2, 1)


def test_stream_drops_a_tensor_that_there_is_no_memory_for():
    left, right = map(StreamChannel, socket.socketpair())
    large = numbers(1, 64 * MIB)  # more than threads of other tests may give back meanwhile

    def send_all():
        send(left, 1, large)
        left.send(Cancel(2, 0))
        send(left, 3, numbers(3))

    sender = threading.Thread(target=send_all)
    with contextlib.closing(left), contextlib.closing(right):
        with little_memory(32 * MIB):
            sender.start()
            received = right.receive()

        check_unread(received, 1, "the server has no memory left")
        assert right.receive().frame == Cancel(2, 0)
        check_read(right, 3, 3)
        sender.join()
