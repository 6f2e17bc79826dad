# SPDX-License-Identifier: Apache-2.0
"""What a worker can make its server hold, and what it may say, has limits."""

from __future__ import annotations

import array
import fcntl
import os
import pathlib
import socket
import struct

import msgspec
import pytest

from pytriton.runtime.transport import peer_account
from pytriton.runtime.transport.arena import Arena
from pytriton.runtime.transport.frames import (
    BatchResult,
    BurstRef,
    Cancel,
    Execute,
    InferReply,
    Initialized,
    MemoryFrame,
    ResponseItem,
    ResponseRows,
    ResponsesFrame,
    ServiceReply,
    WorkerLogLine,
    decode_worker_record,
    encode_frame,
    encode_record,
)
from pytriton.runtime.transport.link import MAX_PACKET_BYTES, socket_pair, stream_pair
from pytriton.runtime.transport.memory import has_sealed_memory
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.peer_account import PeerAccount, ProtocolError
from pytriton.runtime.transport.refs import BlockRef, MemoryUpdate, SegmentRef, TensorRef
from pytriton.runtime.transport.stream_channel import StreamChannel
from tests.e2e.waiting import DEADLINE_S

MIB = 1 << 20
needs_seals = pytest.mark.skipif(not has_sealed_memory(), reason="memory is not sealed here")


class Worker:
    """The server's end of a worker's channel, and the socket of the worker."""

    def __init__(self, pair):
        near, self.far = pair
        self.account = PeerAccount()
        self.channel = MemoryChannel(near, Arena(), account=self.account)
        near.setblocking(False)
        self.far.setblocking(False)

    def receive(self):
        return self.channel.receive()

    def pass_descriptors(self, frame, descriptors):
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        self.far.sendmsg([encode_frame(frame)], rights)

    def close(self):
        self.channel.close()
        self.far.close()
        assert not self.account.partial_bytes
        assert not self.account.unread_bytes


@pytest.fixture
def worker():
    made = Worker(socket_pair())
    yield made
    made.close()


@pytest.fixture
def stream_worker():
    made = Worker(stream_pair())
    yield made
    made.close()


def sealed_memory(size):
    """A file of so many bytes that takes no memory."""
    descriptor = os.memfd_create("x", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, 1033, 2 | 4 | 1)  # the seals of `memory.py`
    return descriptor


def open_count():
    return len(list(pathlib.Path("/proc/self/fd").iterdir()))


def test_message_that_never_ends_is_refused(worker):
    packet = bytes(MAX_PACKET_BYTES)

    def go_on():
        for _ in range(peer_account.MAX_MESSAGE_BYTES // MAX_PACKET_BYTES + 2):
            worker.far.send(packet)
            worker.receive()

    with pytest.raises(ProtocolError, match=r"expected messages of at most \d+ bytes, got \d+"):
        go_on()

    assert worker.account.partial_bytes <= peer_account.MAX_MESSAGE_BYTES + MAX_PACKET_BYTES


def test_message_whose_length_is_too_large_is_refused_before_it_comes(stream_worker):
    stream_worker.far.send(struct.pack("<I", 1 << 30))
    with pytest.raises(ProtocolError, match="expected a message of at most"):
        stream_worker.receive()


def test_message_of_64_mib_arrives(worker):
    message = encode_frame(WorkerLogLine("INFO", "x" * (64 * MIB), "a.py", 1))
    received = None
    for at in range(0, len(message), MAX_PACKET_BYTES):
        worker.far.send(message[at : at + MAX_PACKET_BYTES])
        received = worker.receive()

    assert len(received.frame.message) == 64 * MIB
    assert not worker.account.partial_bytes


def test_parts_of_messages_count_together_for_all_connections_of_a_worker(monkeypatch):
    monkeypatch.setattr(peer_account, "MAX_PARTIAL_BYTES", 3 * MAX_PACKET_BYTES)
    account = PeerAccount()
    workers = [Worker(socket_pair()) for _ in range(2)]
    for each in workers:
        each.channel.link._account = each.account = account
        each.far.send(bytes(MAX_PACKET_BYTES))
        assert each.receive() is None
    workers[0].far.send(bytes(MAX_PACKET_BYTES))
    assert workers[0].receive() is None
    workers[1].far.send(bytes(MAX_PACKET_BYTES))
    with pytest.raises(ProtocolError, match="of all that are not complete"):
        workers[1].receive()
    for each in workers:
        each.channel.close()
        each.far.close()

    assert not account.partial_bytes


def test_worker_that_does_not_read_is_ended(worker, monkeypatch):
    monkeypatch.setattr(peer_account, "MAX_UNREAD_BYTES", 4 * MIB)
    frame = WorkerLogLine("INFO", "x" * 60_000, "a.py", 1)

    def send_on():
        for _ in range(1000):
            worker.channel.send(frame)

    with pytest.raises(ProtocolError, match="expected that it reads what it is sent"):
        send_on()
    unread = worker.account.unread_bytes
    worker.far.recv(1 << 20)
    worker.channel.flush()

    assert unread <= 5 * MIB
    assert worker.account.unread_bytes < unread


@pytest.fixture
def remote():
    """The server's end of the channel of a worker on another machine, and the worker's socket."""
    near, far = stream_pair()
    account = PeerAccount()
    channel = StreamChannel(near, account)
    channel.set_blocking(False)
    yield channel, far, account
    channel.close()
    far.close()
    assert not account.unread_bytes


def test_remote_worker_that_does_not_read_is_ended(remote, monkeypatch):
    monkeypatch.setattr(peer_account, "MAX_UNREAD_BYTES", 4 * MIB)
    channel, far, account = remote

    def send_on():
        for _ in range(1000):
            payload = channel.payload()
            payload.add([bytes(100_000)], 100_000)
            channel.send(InferReply(1, []), payload)

    with pytest.raises(ProtocolError, match="expected that it reads what it is sent"):
        send_on()
    unread = account.unread_bytes
    assert 3 * MIB < unread <= 4 * MIB

    far.recv(1 << 20)
    channel.flush()
    assert account.unread_bytes < unread


def test_large_batches_of_a_remote_worker_are_not_counted(remote, monkeypatch):
    monkeypatch.setattr(peer_account, "MAX_UNREAD_BYTES", 1 * MIB)
    channel, far, account = remote
    payload = channel.payload()
    block, offset = payload.add([bytes(9 * MIB)], 9 * MIB)
    ref = TensorRef("x", 1, (9 * MIB,), offset, 9 * MIB, block)
    channel.send(Execute(1, [1], [ref]), payload)
    channel.send(ServiceReply(1, "x" * 1000))
    assert 1000 < account.unread_bytes < 2000

    far.settimeout(DEADLINE_S)
    while channel.has_unsent:
        far.recv(1 << 20)
        channel.flush()
    assert account.unread_bytes == 0


def test_descriptors_without_segments_are_closed_at_once(worker):
    before = open_count()
    passed = [os.open(os.devnull, os.O_RDONLY) for _ in range(250)]
    worker.pass_descriptors(MemoryFrame(), passed)
    for each in passed:
        os.close(each)
    with pytest.raises(ProtocolError, match="expected a file descriptor for each segment, got 250"):
        worker.receive()
    worker.channel.close()

    assert open_count() < before


def test_memory_of_the_next_message_may_be_read_with_a_message(stream_worker):
    far = MemoryChannel(stream_worker.far, Arena())
    far.send(MemoryFrame())
    payload = far.payload()
    payload.add([bytes(1 * MIB)], 1 * MIB)
    far.send(MemoryFrame(), payload)
    received = [stream_worker.receive(), stream_worker.receive()]
    far.close()

    assert [each.frame.memory is None for each in received] == [True, False]
    assert len(received[1].blocks) == 1


def test_descriptors_with_parts_of_a_message_are_limited(worker):
    null = os.open(os.devnull, os.O_RDONLY)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * 250))]

    def pass_more():
        for _ in range(3):
            worker.far.sendmsg([bytes(MAX_PACKET_BYTES)], rights)
            worker.receive()

    with pytest.raises(ProtocolError, match="expected at most 250 file descriptors"):
        pass_more()
    os.close(null)


def test_descriptor_of_one_segment_of_several_is_closed(worker):
    before = open_count()
    update = MemoryUpdate(segments=[SegmentRef(1, 4096), SegmentRef(2, 4096)])
    with pathlib.Path(os.devnull).open("rb") as file:
        worker.pass_descriptors(MemoryFrame(memory=update), [file.fileno()])
    with pytest.raises(ProtocolError, match="expected 2 descriptors, got 1"):
        worker.receive()

    assert open_count() == before


@needs_seals
def test_sparse_memory_is_not_mapped_without_limit(worker):
    size = 4 << 30

    def pass_more():
        for number in range(8):
            descriptor = sealed_memory(size)
            update = MemoryUpdate(segments=[SegmentRef(number, size)])
            worker.pass_descriptors(MemoryFrame(memory=update), [descriptor])
            os.close(descriptor)
            worker.receive()

    with pytest.raises(ProtocolError, match=r"expected at most \d+ segments of \d+ bytes"):
        pass_more()

    assert worker.channel.tracker.mapped_count == peer_account.MAX_MAPPED_BYTES // size


@needs_seals
def test_memory_that_is_dropped_makes_room_for_other_memory(worker):
    size = 4 << 30
    for number in range(20):
        descriptor = sealed_memory(size)
        update = MemoryUpdate(
            segments=[SegmentRef(number, size)], dropped_segments=[number - 1] if number else []
        )
        worker.pass_descriptors(MemoryFrame(memory=update), [descriptor])
        os.close(descriptor)
        worker.receive()

    assert worker.channel.tracker.mapped_count == 1


@needs_seals
def test_segment_that_comes_twice_is_mapped_once(worker):
    for _ in range(3):
        descriptor = sealed_memory(MIB)
        update = MemoryUpdate(segments=[SegmentRef(7, MIB)])
        worker.pass_descriptors(MemoryFrame(memory=update), [descriptor])
        os.close(descriptor)
        worker.receive()

    assert len(worker.account._segments) == 1


@pytest.mark.parametrize(
    "update, expected",
    [
        (MemoryUpdate(released_blocks=[5]), "expected a block that was lent, got 5"),
        (MemoryUpdate(abandoned_blocks=[5]), "expected a block that was lent, got 5"),
        (MemoryUpdate(returned_blocks=[5]), "expected a block that was lent, got 5"),
        (MemoryUpdate(blocks=[BlockRef(1, 2, 0, 8)]), "expected a block of a segment that was"),
        (MemoryUpdate(segments=[SegmentRef(1, 8)]), "expected 1 descriptors, got 0"),
    ],
)
def test_wrong_update_about_memory_is_refused(worker, update, expected):
    worker.far.send(encode_frame(MemoryFrame(memory=update)))
    with pytest.raises(ProtocolError, match=expected):
        worker.receive()


def test_blocks_that_are_named_without_end_are_refused(worker, monkeypatch):
    monkeypatch.setattr("pytriton.runtime.transport.memory_channel.MAX_RELEASES", 1000)
    descriptor = sealed_memory(MIB)
    update = MemoryUpdate(segments=[SegmentRef(1, MIB)])
    worker.pass_descriptors(MemoryFrame(memory=update), [descriptor])
    os.close(descriptor)
    worker.receive()
    blocks = [BlockRef(number, 1, 0, 8) for number in range(400)]

    def name_more():
        for _ in range(9):
            worker.far.send(encode_frame(MemoryFrame(memory=MemoryUpdate(blocks=blocks))))
            worker.receive()

    with pytest.raises(ProtocolError, match="expected at most 1000 blocks"):
        name_more()


RESULT = TensorRef("y", 11, (1,), 0, 4)


def changed(record, **fields):
    """The record of a frame with values that it cannot have."""
    return encode_record(msgspec.structs.replace(record, **fields))


@pytest.mark.parametrize(
    "record, expected",
    [
        (changed(BatchResult(1, 0, 0, []), started_ns=-1), r"`int` >= 0.*kind 'batch'; got -1"),
        (changed(BatchResult(1, 0, 0, []), finished_ns=2**63), "`int` <= .*; got 9223372036854775"),
        (changed(BatchResult(1, 0, 0, []), processor_ns=-5), "`int` >= 0.*got -5"),
        (
            changed(BatchResult(1, 0, 0, []), copied=(2**60, 0)),
            "`int` <= .*got 115292150460684",
        ),
        (changed(BatchResult(1, 0, 0, []), started_ns="now"), "expected `int`, got `str`"),
        (
            encode_record(BatchResult(1, 0, 0, [msgspec.structs.replace(RESULT, size=-4)])),
            "`int` >= 0.*got -4",
        ),
        (
            encode_record(BatchResult(1, 0, 0, [msgspec.structs.replace(RESULT, dtype=99)])),
            "`int` <= 14.*got 99",
        ),
        (
            encode_record(BatchResult(1, 0, 0, [msgspec.structs.replace(RESULT, shape=(-1,))])),
            "`int` >= 0.*got -1",
        ),
        (
            encode_record(
                ResponsesFrame(0, 0, [], rows=ResponseRows([BurstRef(1, 0, 2**23)], [RESULT]))
            ),
            "`int` <= .*got 8388608",
        ),
        (encode_record(Initialized(config="x" * 2**21)), "`str` of length <= 1048576"),
        (encode_record(Cancel(1, 0)), "invalid value 'cancel'"),
        (encode_record(Execute(1, [1], [])), "invalid value 'execute'"),
        (b"\x91" * 5000, "nested too deeply|expected"),
        (b"\xc1", "malformed"),
        (b"", "truncated"),
    ],
)
def test_record_that_no_worker_sends_is_refused_with_its_wrong_value(record, expected):
    with pytest.raises(ProtocolError, match=expected):
        decode_worker_record(record)


def test_record_of_many_small_values_is_refused_before_it_is_decoded():
    record = encode_record(ResponsesFrame(0, 0, [ResponseItem(1, 0)] * 600_000))
    with pytest.raises(ProtocolError, match="expected"):
        decode_worker_record(record)


def test_large_record_of_texts_is_read():
    items = [ResponseItem(1, place, error="x" * 100_000) for place in range(40)]
    frame = decode_worker_record(encode_record(ResponsesFrame(0, 0, items)))

    assert len(frame.items) == 40


def test_what_is_said_about_a_record_is_short():
    record = encode_record(BatchResult(1, 1, 2, [])).replace(
        b"\xa5batch", b"\xda\x4e\x20" + b"B" * 20_000
    )
    with pytest.raises(ProtocolError) as caught:
        decode_worker_record(record)

    assert str(caught.value).startswith("invalid value 'BBB")
    assert "- at `$[0]`, in a frame of kind 'BBB" in str(caught.value)
    assert len(str(caught.value)) < 500
