# SPDX-License-Identifier: Apache-2.0
"""What holds for every channel, whatever carries it: with shared memory and without any."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pytriton.base.dtypes import BYTES, FP32, encode_bytes
from pytriton.runtime.transport.frames import Cancel, Execute, WorkerLogLine
from pytriton.runtime.transport.refs import TensorRef
from pytriton.runtime.transport.stream_channel import StreamChannel
from tests.e2e.waiting import DEADLINE_S

if TYPE_CHECKING:
    from pytriton.runtime.transport.channel import Channel

MIB = 1 << 20


def send_array(channel: Channel, array: np.ndarray) -> None:
    payload = channel.payload()
    block, offset = payload.add([memoryview(array).cast("B")], array.nbytes)
    ref = TensorRef("x", FP32.number, array.shape, offset, array.nbytes, block)
    channel.send(Execute(1, [1], [ref]), payload)


def receive_array(channel: Channel) -> np.ndarray:
    received = channel.receive()
    return received.array(received.frame.inputs[0])


def in_background(work):
    """Run something that may have to wait for the other end."""
    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.parametrize("size", [1, 1000, 10_000, MIB, 17 * MIB])
def test_arrays_of_any_size_arrive(channels, size):
    left, right = channels
    sent = np.arange(size, dtype=np.float32)
    thread = in_background(lambda: send_array(left, sent))

    np.testing.assert_array_equal(receive_array(right), sent)
    thread.join(DEADLINE_S)


def test_several_tensors_of_one_message_do_not_mix(channels):
    left, right = channels
    arrays = [np.full(size, size, np.float32) for size in (1, 3, 20_000, 5, 300_000)]
    payload = left.payload()
    refs = []
    for array in arrays:
        block, offset = payload.add([array.tobytes()], array.nbytes)
        refs.append(TensorRef("x", FP32.number, array.shape, offset, array.nbytes, block))
    thread = in_background(lambda: left.send(Execute(1, [1], refs), payload))
    received = right.receive()

    for ref, array in zip(received.frame.inputs, arrays, strict=True):
        np.testing.assert_array_equal(received.array(ref), array)
        assert received.array(ref).flags.writeable
    thread.join(DEADLINE_S)


def test_empty_and_bytes_tensors_arrive(channels):
    left, right = channels
    elements = [b"", b"\x00\xff", b"x" * 70_000]
    data = encode_bytes(elements)
    payload = left.payload()
    block, offset = payload.add([data], len(data))
    refs = [
        TensorRef("empty", FP32.number, (0, 3), 0, 0),
        TensorRef("bytes", BYTES.number, (3,), offset, len(data), block),
    ]
    left.send(Execute(1, [1], refs), payload)
    received = right.receive()

    assert received.array(refs[0]).shape == (0, 3)
    assert received.array(refs[1]).tolist() == elements


def test_order_and_boundaries_are_kept(channels):
    for batch in range(100):
        channels[0].send(Cancel(batch, 0))

    assert [channels[1].receive().frame.batch for _ in range(100)] == list(range(100))


def test_large_frames_arrive(channels):
    frame = Execute(1, [1] * 300_000, [], ids={0: "x" * 300_000})
    thread = in_background(lambda: channels[0].send(frame))
    received = channels[1].receive().frame

    assert (len(received.rows), received.ids) == (300_000, frame.ids)
    thread.join(DEADLINE_S)


def test_frame_that_cannot_be_encoded_is_refused_and_the_next_one_arrives(channels):
    left, right = channels
    with pytest.raises(UnicodeEncodeError):
        left.send(WorkerLogLine("INFO", "\udcff", "f", 1))
    left.send(WorkerLogLine("INFO", "next", "f", 1))

    assert right.receive().frame.message == "next"


def test_end_of_the_peer_is_told_after_what_it_said(channels):
    left, right = channels
    left.send(Cancel(1, 2))
    left.close()

    assert right.receive().frame.batch == 1
    with pytest.raises(EOFError):
        right.receive()


def test_sending_to_nobody_is_an_oserror(channels):
    left, right = channels
    right.close()
    with contextlib.suppress(OSError):  # a stream may take the first
        left.send(Cancel(1, 2))
    with pytest.raises(OSError):
        left.send(Cancel(1, 2))


def test_nothing_to_read_is_none_where_nobody_waits(channels):
    left, right = channels
    assert right.receive(socket.MSG_DONTWAIT) is None
    right.set_blocking(False)
    assert right.receive() is None
    left.send(Cancel(1, 2))
    select.select([right.fileno()], [], [], DEADLINE_S)  # a busy system delivers TCP a bit later

    assert right.receive().frame.batch == 1
    assert not right.has_message
    right.set_blocking(True)


def test_what_does_not_fit_is_kept_until_it_is_flushed(channels):
    left, right = channels
    left.set_blocking(False)
    count = 0
    while not left.has_unsent:
        left.send(Cancel(count, 0))
        count += 1
    left.send(Cancel(count, 0))
    got = []
    while len(got) <= count:
        got.append(right.receive().frame.batch)
        left.flush()

    assert got == list(range(count + 1))
    assert not left.has_unsent


def test_memory_is_idle_and_all_given_back_in_the_end(channels):
    left, right = channels
    thread = in_background(lambda: send_array(left, np.zeros(MIB, np.float32)))
    receive_array(right)
    thread.join(DEADLINE_S)
    right.send_memory_update()
    if not isinstance(left, StreamChannel):
        left.receive()
    left.trim(0.0)
    if not isinstance(left, StreamChannel):
        right.receive()

    assert left.reserved_bytes == 0
    assert not right.maps_memory
    assert not left.has_memory_update
    assert not right.has_memory_update


def test_closing_twice_is_harmless(channels):
    for _ in range(2):
        for channel in channels:
            channel.close()  # the second time, nothing is left to close
