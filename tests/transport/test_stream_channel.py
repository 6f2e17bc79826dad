# SPDX-License-Identifier: Apache-2.0
"""A channel between machines: what the contract of all channels does not say."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import pathlib
import socket
import struct
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.base.dtypes import FP32
from pytriton.base.errors import UnavailableError
from pytriton.runtime.transport import stream_channel
from pytriton.runtime.transport.frames import (
    BatchResult,
    Cancel,
    Execute,
    ResponseItem,
    ResponsesFrame,
)
from pytriton.runtime.transport.link import stream_pair
from pytriton.runtime.transport.refs import TensorRef
from pytriton.runtime.transport.response_outbox import ResponseOutbox
from pytriton.runtime.transport.stream_channel import (
    HEAD_BYTES,
    MAGIC,
    MAX_RECORD_BYTES,
    MAX_TENSOR_BYTES,
    SCRATCH_BYTES,
    StreamChannel,
    tune_stream,
)
from tests.e2e.waiting import DEADLINE_S
from tests.transport.tcp import tcp_pair

MIB = 1 << 20


@pytest.fixture(params=["unix", "tcp"])
def ends(request):
    """A socket in the test's hands, and the channel at the other end."""
    raw, sock = tcp_pair() if request.param == "tcp" else stream_pair()
    channel = StreamChannel(sock)
    yield raw, channel
    raw.close()
    channel.close()


def ref(array: np.ndarray, place: tuple[int, int]) -> TensorRef:
    block, offset = place
    return TensorRef("x", FP32.number, array.shape, offset, array.nbytes, block)


def add(payload, array: np.ndarray) -> TensorRef:
    return ref(array, payload.add([memoryview(array.reshape(-1)).cast("B")], array.nbytes))


def execute_of(channel: StreamChannel, arrays: list[np.ndarray]):
    payload = channel.payload()
    return Execute(1, [1], [add(payload, array) for array in arrays]), payload


def written(frames) -> bytes:
    """Returns the bytes of frames with arrays, as a channel writes them."""
    ours, theirs = stream_pair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MIB)
    sender = StreamChannel(ours)
    parts = []
    reader = threading.Thread(target=lambda: parts.extend(iter(lambda: theirs.recv(MIB), b"")))
    reader.start()
    for arrays in frames:
        sender.send(*execute_of(sender, arrays))
    sender.close()
    reader.join(DEADLINE_S)
    theirs.close()
    return b"".join(parts)


def head(magic=MAGIC, record_bytes=0, tensor_bytes=0) -> bytes:
    return struct.pack("<IIQ", magic, record_bytes, tensor_bytes)


STREAM = [
    [np.arange(3, dtype=np.float32)],
    [],
    [np.arange(SCRATCH_BYTES // 4 + 5, dtype=np.float32), np.ones(1, np.float32)],
    [np.zeros((0, 4), np.float32), np.arange(4000, dtype=np.float32)],
    [np.arange(SCRATCH_BYTES // 4 - 30, dtype=np.float32)],
    [np.full((2, 2), 7, np.float32)],
]
STREAM_BYTES = written(STREAM)


@given(cuts=st.lists(st.integers(0, len(STREAM_BYTES)), max_size=12), waits=st.booleans())
def test_messages_arrive_however_the_bytes_are_cut(cuts, waits):
    raw, sock = stream_pair()
    receiver = StreamChannel(sock)
    receiver.set_blocking(waits)
    got = []
    edges = [0, *sorted(cuts), len(STREAM_BYTES)]
    try:
        for start, end in itertools.pairwise(edges):
            rest = memoryview(STREAM_BYTES)[start:end]
            while len(rest):
                rest = rest[raw.send(rest[: 32 << 10]) :]
                while (received := receiver.receive(socket.MSG_DONTWAIT)) is not None:
                    got.append([received.array(each) for each in received.frame.inputs])
        assert not receiver.has_message
    finally:
        raw.close()
        receiver.close()

    assert len(got) == len(STREAM)
    for arrays, expected in zip(got, STREAM, strict=True):
        for array, sent in zip(arrays, expected, strict=True):
            np.testing.assert_array_equal(array, sent)


def test_tensors_are_aligned_and_writable(ends):
    raw, channel = ends
    threading.Thread(target=raw.sendall, args=(STREAM_BYTES,), daemon=True).start()
    for _ in STREAM:
        received = channel.receive()
        for each in received.frame.inputs:
            array = received.array(each)
            assert array.size == 0 or array.ctypes.data % 16 == 0
            assert array.flags.writeable


def test_messages_that_came_together_are_buffered(ends):
    raw, channel = ends
    raw.sendall(written([[np.ones(1, np.float32)]] * 3))
    states = []
    for _ in range(3):
        channel.receive()
        states.append(channel.has_message)

    assert states == [True, True, False]


def test_what_was_received_does_not_change_with_the_next_message(ends):
    raw, channel = ends
    raw.sendall(written([[np.full(9, value, np.float32)] for value in range(5)]))
    arrays = []
    for _ in range(5):
        received = channel.receive()
        arrays.append(received.array(received.frame.inputs[0]))

    assert [array.tolist() for array in arrays] == [[value] * 9 for value in range(5)]


@pytest.mark.parametrize(
    "wrong",
    [
        b"HTTP/1.1 200 OK\r\n\r\n",
        head(magic=MAGIC + 1),
        head(record_bytes=MAX_RECORD_BYTES + 1),
        head(tensor_bytes=MAX_TENSOR_BYTES + 1),
        head(tensor_bytes=2**64 - 1),
    ],
)
def test_peer_that_lost_its_place_is_told_from_one_that_is_slow(ends, wrong):
    raw, channel = ends
    raw.sendall(written([[]]) + wrong)
    channel.receive()

    with pytest.raises(ValueError, match="expected a message of at most"):
        channel.receive()


def test_broken_head_behind_a_message_is_reported_by_the_next_receive(ends):
    raw, channel = ends
    raw.sendall(written([[]]) + b"\xff" * HEAD_BYTES)
    channel.receive()

    assert channel.has_message
    with pytest.raises(ValueError, match="expected a message"):
        channel.receive()


@pytest.mark.parametrize("record", [b"\xc1" * 40, b"\x91\xa4none"])
def test_record_that_is_no_frame_is_an_error(ends, record):
    raw, channel = ends
    raw.sendall(head(record_bytes=len(record)) + record.ljust(48))

    with pytest.raises(ValueError):
        channel.receive()


def test_claimed_size_takes_no_memory_before_its_bytes_come(ends):
    raw, channel = ends
    channel.set_blocking(False)
    raw.sendall(head(tensor_bytes=MAX_TENSOR_BYTES // 4) + b"x" * 1000)
    before = resident_bytes()
    while channel._reader._filled < HEAD_BYTES + 1000:
        assert channel.receive() is None

    assert resident_bytes() - before < 256 * MIB


def resident_bytes() -> int:
    """Returns the memory of this process; 0 where the system does not tell."""
    file = pathlib.Path("/proc/self/statm")
    return int(file.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if file.exists() else 0


@pytest.mark.parametrize("size", [0, 7, HEAD_BYTES, 100, SCRATCH_BYTES + 100])
def test_end_in_the_middle_of_a_message_is_the_end(ends, size):
    raw, channel = ends
    data = written([[np.zeros(SCRATCH_BYTES, np.float32)]])[:size]
    raw.sendall(data)
    raw.close()

    with pytest.raises(EOFError):
        channel.receive()


@pytest.mark.parametrize("code", [errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH])
def test_machine_that_is_gone_is_the_end_of_its_connection(ends, code):
    class Gone:
        def recv_into(self, *_):
            raise OSError(code, os.strerror(code))

    channel = ends[1]
    channel._reader._socket = Gone()

    with pytest.raises(EOFError):
        channel.receive()


def test_reset_of_the_connection_is_its_end():
    raw, sock = tcp_pair()
    channel = StreamChannel(sock)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()

    with contextlib.closing(channel), pytest.raises(EOFError):
        channel.receive()


def test_large_tensors_wait_as_they_are_and_arrive(ends):
    raw, channel = ends
    far = StreamChannel(raw)
    channel.set_blocking(False)
    arrays = [np.arange(4 * MIB, dtype=np.float32), np.arange(5, dtype=np.float32)]
    for array in arrays:
        channel.send(*execute_of(channel, [array]))
    assert channel.has_unsent
    sender = threading.Thread(target=flush_all, args=(channel,))
    sender.start()
    got = []
    for _ in arrays:
        received = far.receive()
        got.append(received.array(received.frame.inputs[0]))
    sender.join(DEADLINE_S)

    for array, sent in zip(got, arrays, strict=True):
        np.testing.assert_array_equal(array, sent)
    assert not channel.has_unsent


def flush_all(channel: StreamChannel) -> None:
    while channel.has_unsent:
        channel.flush()


def test_views_keep_their_memory_until_they_are_sent(ends):
    raw, channel = ends
    far = StreamChannel(raw)
    channel.set_blocking(False)
    channel.send(*execute_of(channel, [np.full(8 * MIB, 5, np.float32)]))  # and forgets it
    sender = threading.Thread(target=flush_all, args=(channel,))
    sender.start()
    received = far.receive()
    sender.join(DEADLINE_S)

    assert (received.array(received.frame.inputs[0]) == 5).all()


def test_tensor_of_more_pieces_than_one_call_takes_arrives(ends, monkeypatch):
    monkeypatch.setattr(stream_channel, "_SMALL_PIECE_BYTES", 0)  # they are not joined
    raw, channel = ends
    far = StreamChannel(raw)
    pieces = [bytes([index % 251]) * (index % 100) for index in range(5000)]
    size = sum(map(len, pieces))
    payload = channel.payload()
    place = payload.add(pieces, size)
    frame = Execute(1, [1], [TensorRef("x", FP32.number, (size // 4,), place[1], size)])
    sender = threading.Thread(target=channel.send, args=(frame, payload))
    sender.start()
    received = far.receive()
    sender.join(DEADLINE_S)

    assert bytes(received.buffer(received.frame.inputs[0])) == b"".join(pieces)


def test_small_messages_of_many_threads_do_not_mix(ends):
    raw, channel = ends
    far = StreamChannel(raw)
    threads = [
        threading.Thread(target=lambda base=base: send_cancels(channel, base))
        for base in range(0, 4000, 1000)
    ]
    for thread in threads:
        thread.start()
    got = [far.receive().frame.batch for _ in range(4000)]
    for thread in threads:
        thread.join(DEADLINE_S)

    assert sorted(got) == list(range(4000))
    for base in range(0, 4000, 1000):
        assert [batch for batch in got if base <= batch < base + 1000] == list(
            range(base, base + 1000)
        )


def send_cancels(channel: StreamChannel, base: int) -> None:
    for batch in range(base, base + 1000):
        channel.send(Cancel(batch, 0))


def test_frame_that_is_too_large_is_refused_and_the_next_one_arrives(ends, monkeypatch):
    monkeypatch.setattr(stream_channel, "MAX_RECORD_BYTES", 1000)
    raw, channel = ends
    with pytest.raises(ValueError, match="expected a frame of at most 1000 bytes"):
        channel.send(Execute(1, [1] * 2000, []))
    channel.send(Cancel(5, 0))

    assert StreamChannel(raw).receive().frame.batch == 5


def test_tensors_that_are_too_large_are_refused_and_the_next_frame_arrives(ends, monkeypatch):
    monkeypatch.setattr(stream_channel, "MAX_TENSOR_BYTES", 1000)
    raw, channel = ends
    payload = channel.payload()
    payload.add([bytes(1008)], 1008)
    with pytest.raises(UnavailableError, match="no room for 1008 bytes of tensors"):
        channel.send(Execute(1, [1], []), payload)
    channel.send(Cancel(5, 0))

    assert StreamChannel(raw).receive().frame.batch == 5


@pytest.mark.parametrize("way", ["respond", "add"])
def test_array_that_changes_after_its_response_was_given_is_sent_as_it_was(ends, way):
    raw, channel = ends
    far = StreamChannel(raw)
    outbox = ResponseOutbox(channel)
    array = np.zeros(40_000, np.float32)
    reader_got = []

    def read():
        while len(reader_got) < 5:
            received = far.receive()
            reader_got.extend(received.array(i.outputs[0])[0] for i in received.frame.items)

    reader = threading.Thread(target=read)
    reader.start()
    for value in range(5):
        array[:] = value
        if way == "respond":
            outbox.respond(lambda payload: item_of(payload, array), 0, at_once=False)
        else:
            outbox.add(lambda payload: [item_of(payload, array)], 0)
    array[:] = -1
    outbox.flush()
    reader.join(DEADLINE_S)
    outbox.close()

    assert reader_got == [0, 1, 2, 3, 4]


def item_of(payload, array: np.ndarray) -> ResponseItem:
    return ResponseItem(1, 0, [add(payload, array)], is_final=False)


def test_connection_of_a_forked_process_is_closed_there(ends):
    channel = ends[1]
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, b"closed" if channel.fileno() == -1 else b"open")
        os._exit(0)
    os.waitpid(pid, 0)
    answer = os.read(reading, 10)
    for descriptor in (reading, writing):
        os.close(descriptor)

    assert answer == b"closed"
    assert channel.fileno() != -1


def test_result_of_a_batch_travels_back(ends):
    raw, channel = ends
    far = StreamChannel(raw)
    payload = far.payload()
    outputs = [add(payload, np.arange(6, dtype=np.float32).reshape(2, 3))]
    far.send(BatchResult(9, 1, 2, outputs), payload)
    far.send(ResponsesFrame(1, 2, []))
    received = channel.receive()

    assert received.array(received.frame.outputs[0]).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert channel.receive().frame.items == []


def test_connection_between_machines_notices_a_dead_one_in_seconds():
    ours, theirs = tcp_pair()
    with ours, theirs:
        options = [
            ours.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
            for name in ("TCP_NODELAY", "TCP_KEEPINTVL", "TCP_KEEPCNT")
        ]
        is_kept_alive = ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)

    assert [bool(options[0]), *options[1:]] == [True, 1, 3]
    assert is_kept_alive


def test_options_that_a_system_does_not_have_are_left_out(monkeypatch):
    for name in ("TCP_KEEPIDLE", "TCP_KEEPALIVE", "TCP_KEEPCNT"):
        monkeypatch.delattr(socket, name, raising=False)
    ours, theirs = tcp_pair()
    with ours, theirs:
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_unix_socket_needs_no_options():
    ours, theirs = stream_pair()
    with ours, theirs:
        tune_stream(ours)
        assert not ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
