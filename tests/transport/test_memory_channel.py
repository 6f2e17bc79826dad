# SPDX-License-Identifier: Apache-2.0
"""Two ends of a channel in one process; every test runs over both kinds of memory and socket."""

from __future__ import annotations

import gc
import pathlib
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pytriton.base.dtypes import BYTES, FP32, encode_bytes
from pytriton.base.errors import UnavailableError
from pytriton.runtime.transport import arena, memory, memory_channel
from pytriton.runtime.transport.arena import Arena, find_unshared_remote_block
from pytriton.runtime.transport.channel import Received
from pytriton.runtime.transport.frames import Cancel, Execute, MemoryFrame
from pytriton.runtime.transport.frontend_frames import ChunkItem, ColumnRef, Submit
from pytriton.runtime.transport.link import socket_pair
from pytriton.runtime.transport.memory import PORTABLE_SETTING
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.refs import PartRef, TensorRef
from tests.e2e.waiting import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

MIB = 1 << 20
Ends = tuple[MemoryChannel, MemoryChannel]


@pytest.fixture(params=["native", "portable"])
def ends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    monkeypatch.setenv(PORTABLE_SETTING, "1" if request.param == "portable" else "0")
    left, right = (MemoryChannel(sock, Arena()) for sock in socket_pair())
    yield left, right
    left.close()
    right.close()


def send_array(channel: MemoryChannel, array: NDArray[np.float32]) -> None:
    payload = channel.payload()
    block, offset = payload.add([memoryview(array).cast("B")], array.nbytes)
    ref = TensorRef("x", FP32.number, array.shape, offset, array.nbytes, block)
    channel.send(Execute(1, [1], [ref]), payload)


def receive(channel: MemoryChannel) -> Received:
    received = channel.receive()
    assert received is not None
    return received


def receive_array(channel: MemoryChannel) -> NDArray[np.float32]:
    received = receive(channel)
    assert isinstance(received.frame, Execute)
    return received.array(received.frame.inputs[0])


def test_channel_gives_writable_arrays(ends: Ends) -> None:
    for size in (4, MIB):
        send_array(ends[0], np.zeros(size, np.float32))
        array = receive_array(ends[1])
        array += 1

        assert array[-1] == 1


def send_parts(
    channel: MemoryChannel, parts: Sequence[bytes], shape: tuple[int, ...], dtype: int
) -> None:
    payload = channel.payload()
    places = [payload.add([part], len(part)) for part in parts]
    refs = [
        PartRef(block, offset, len(part))
        for (block, offset), part in zip(places, parts, strict=True)
    ]
    ref = TensorRef("x", dtype, shape, 0, sum(map(len, parts)), parts=refs)
    channel.send(Execute(1, [1], [ref]), payload)


def test_receiver_joins_a_tensor_whose_parts_are_in_several_places(ends: Ends) -> None:
    left, right = ends
    rows = [np.full((count, MIB // 4), count, np.float32) for count in (1, 3, 2)]
    small = np.full((1, MIB // 4), 7, np.float32)[:, :0]
    send_parts(left, [row.tobytes() for row in [*rows, small]], (6, MIB // 4), FP32.number)

    array = receive_array(right)

    assert np.array_equal(array, np.concatenate(rows))
    assert array.flags.writeable
    assert array.flags.c_contiguous


def test_receiver_joins_parts_inside_the_message_and_in_blocks(ends: Ends) -> None:
    left, right = ends
    elements = [b"a", b"b" * MIB, b"c"]
    send_parts(left, [encode_bytes([element]) for element in elements], (3,), BYTES.number)

    assert receive_array(right).tolist() == elements


def test_blocks_of_joined_parts_are_released_with_the_message(ends: Ends) -> None:
    left, right = ends
    send_parts(left, [bytes(MIB)] * 2, (2, MIB // 4), FP32.number)
    array = receive_array(right)
    right.send(MemoryFrame())
    left.receive()

    assert left.tracker.lent_count == 0
    assert not array.any()


def test_column_that_is_kept_does_not_keep_other_blocks_of_its_message(ends: Ends) -> None:
    left, right = ends
    payload = left.payload()
    columns = []
    for value in b"ab":
        data = bytes([value]) * MIB
        block, offset = payload.add([data], MIB)
        columns.append(ColumnRef(offset, MIB, block))
    left.send(Submit([], [ChunkItem(1, 1, 2, 0, columns, [])]), payload)
    kept = receive(right).restricted(columns[1:])
    right.send(MemoryFrame())
    left.receive()

    assert left.tracker.lent_count == 1
    assert kept.column(columns[1], MIB // 2, MIB) == b"b" * (MIB // 2)


def test_parts_of_another_size_than_their_tensor_are_refused(ends: Ends) -> None:
    left, right = ends
    left.send(Execute(1, [1], [TensorRef("x", FP32.number, (2,), 0, 8, parts=[PartRef(0, 0, 4)])]))

    with pytest.raises(ValueError, match="expected parts of 8 bytes together"):
        receive_array(right)


def test_kept_array_never_changes(ends: Ends) -> None:
    left, right = ends
    kept: list[NDArray[np.float32]] = []
    for value in range(40):
        send_array(left, np.full(MIB // 4, value, np.float32))
        array = receive_array(right)
        if value % 3 == 0:
            # Each of these is a different way of still referring to the block.
            forms = [array[5:], array.reshape(2, -1).T, np.asarray(memoryview(array)), array]
            kept.append(forms[value % 4])
        del array
        right.send(MemoryFrame())
        receive(left)

    assert [int(array.ravel()[0]) for array in kept] == list(range(0, 40, 3))
    assert all((array == array.ravel()[0]).all() for array in kept)


def test_block_is_reused_once_the_peer_lets_go(ends: Ends) -> None:
    left, right = ends
    for value in range(50):
        send_array(left, np.full(MIB, value, np.float32))
        receive_array(right)
        right.send(MemoryFrame())
        receive(left)

    assert left.arena.reserved_bytes == 16 * MIB


def test_release_is_told_at_once_while_waiting(ends: Ends) -> None:
    left, right = ends
    send_array(left, np.zeros(MIB, np.float32))
    array = receive_array(right)
    right.releases_at_once = True
    del array
    notes = receive(left).frame

    assert isinstance(notes, MemoryFrame)
    assert "lent=0" in repr(left)


@pytest.mark.parametrize("has_gpu", [True, False])
def test_pages_that_the_peer_may_have_pinned_are_not_given_back(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, has_gpu: bool
) -> None:
    """A GPU would read the old ones in all later messages."""
    monkeypatch.setattr(memory, "may_have_gpu", lambda: has_gpu)
    left, right = ends
    send_array(left, np.ones(MIB, np.float32))
    receive_array(right)
    right.send_memory_update()
    left.receive()
    view = arena.block_bytes(left.arena.allocate(4 * MIB))
    assert (view.view(np.float32) == 1).all()  # it is the memory of the message
    arena.forget(view.data)
    is_kept = bool((view.view(np.float32) == 1).all())

    # The file system of an unlinked file may not be able to give pages back.
    assert is_kept if has_gpu else not is_kept or memory.is_portable_forced()


def test_machine_has_a_gpu_if_it_has_a_device_of_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    device = tmp_path / "nvidiactl"
    monkeypatch.setattr(memory, "_GPU_DEVICES", (str(device),))
    find = memory.may_have_gpu.__wrapped__  # without what is known of this machine
    before = find()
    device.touch()

    assert not before
    assert find()


def test_block_that_goes_back_as_an_answer_is_given_up_after_it(
    ends: Ends,
) -> None:
    left, right = ends
    sent = np.arange(MIB, dtype=np.float32)
    send_array(left, sent)
    right.releases_at_once = True
    arrays = {"x": receive_array(right)}

    found = find_unshared_remote_block(arrays, "x")
    assert found is not None
    payload = right.payload()
    block = payload.return_block(found[0])
    del arrays, found
    ref = TensorRef("x", FP32.number, sent.shape, 0, sent.nbytes, block)
    right.send(Execute(1, [1], [ref]), payload)

    assert np.array_equal(receive_array(left), sent)
    del payload
    assert isinstance(receive(left).frame, MemoryFrame)
    assert "lent=0" in repr(left)


def test_block_is_never_passed_on_where_references_cannot_be_counted(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_array(ends[0], np.zeros(MIB, np.float32))
    arrays = {"x": receive_array(ends[1])}
    assert find_unshared_remote_block(arrays, "x") is not None
    monkeypatch.setattr(arena, "COUNTS_REFERENCES", False)  # as in free-threaded Python

    assert find_unshared_remote_block(arrays, "x") is None


def test_arena_gives_idle_segments_back(ends: Ends) -> None:
    left, right = ends
    send_array(left, np.zeros(8 * MIB, np.float32))
    receive_array(right)
    right.send(MemoryFrame())
    receive(left)
    left.queue_dropped_segments(left.arena.trim(idle_seconds=0))
    left.send_memory_update()
    receive(right)

    assert left.arena.reserved_bytes == 0
    assert "mapped=0" in repr(right)


def test_all_peers_unmap_segments_that_were_dropped_to_make_room(ends: Ends) -> None:
    left, right = ends
    left.arena.limit_bytes = 48 * MIB
    ours, theirs = socket_pair()
    other, peer = MemoryChannel(ours, left.arena), MemoryChannel(theirs, Arena())
    for channel, end in ((left, right), (other, peer)):
        send_array(channel, np.zeros(5 * MIB, np.float32))
        receive_array(end)
        end.send(MemoryFrame())
        receive(channel)
    assert ("mapped=1" in repr(right), "mapped=1" in repr(peer)) == (True, True)

    send_array(left, np.zeros(8 * MIB, np.float32))  # there is no room for both sizes
    receive_array(right)

    assert "mapped=1" in repr(right)
    assert other.has_memory_update
    other.send_memory_update()
    receive(peer)
    assert "mapped=0" in repr(peer)
    other.close()
    peer.close()


def test_arena_is_bounded(ends: Ends) -> None:
    arena = Arena(limit_bytes=32 * MIB)
    held = [arena.allocate(16 * MIB), arena.allocate(8 * MIB)]
    with pytest.raises(UnavailableError, match="no room for a tensor of 16777216 bytes"):
        arena.allocate(16 * MIB)
    held.clear()

    assert arena.allocate(32 * MIB).size == 32 * MIB


def test_arena_places_never_overlap() -> None:
    arena = Arena()
    rng = np.random.default_rng(7)
    held = {}
    for step in range(400):
        block = arena.allocate(int(rng.integers(1, 3 * MIB)))
        block.view()[:] = bytes([step % 251]) * block.size
        held[step] = block
        for old in [key for key in held if rng.random() < 0.3]:
            view = held[old].view()
            assert view[0] == view[-1] == old % 251
            del view, held[old]
        block = None
        arena.check_integrity(held.values())


def test_closed_channel_does_not_reuse_what_the_peer_reads(
    ends: Ends,
) -> None:
    left, right = ends
    send_array(left, np.full(MIB, 7, np.float32))
    array = receive_array(right)
    left.close()
    block = left.arena.allocate(4 * MIB)
    block.view()[:] = bytes(block.size)

    assert (array == 7).all()


def test_closed_channel_maps_only_what_is_still_read(
    ends: Ends,
) -> None:
    left, right = ends
    sent = np.arange(MIB, dtype=np.float32)
    send_array(left, sent)
    kept = receive_array(right)
    assert right.maps_memory
    right.close()

    assert not right.maps_memory
    np.testing.assert_array_equal(kept, sent)


def test_channel_leaks_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def use_one() -> None:
        left, right = (MemoryChannel(sock, Arena()) for sock in socket_pair())
        send_array(left, np.zeros(MIB, np.float32))
        receive_array(right)
        left.close()
        right.close()

    use_one()
    gc.collect()
    before = len(list(pathlib.Path("/dev/fd").iterdir()))
    for _ in range(10):
        use_one()
    gc.collect()

    assert len(list(pathlib.Path("/dev/fd").iterdir())) == before


@pytest.mark.parametrize("by", ["release", "message"])
def test_block_given_back_in_the_middle_of_a_message_is_told_after_it(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    left, right = ends
    held = []
    for _ in range(2):
        send_array(left, np.zeros(MIB, np.float32))
        held.append(receive_array(right))
    right.releases_at_once = True
    send = right.link.send

    def send_and_drop(message: bytes, descriptors: Sequence[int] = ()) -> None:
        held.clear()  # as another thread would, which finds the lock taken
        send(message, descriptors)

    monkeypatch.setattr(right.link, "send", send_and_drop)
    if by == "release":
        del held[0]
    else:
        right.send(MemoryFrame())
    left.link.socket.settimeout(DEADLINE_S)
    for _ in range(2):
        receive(left)

    assert "lent=0" in repr(left)


class NotedLock:
    """A lock that tells when somebody has to wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_awaited = threading.Event()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> None:
        if not self.acquire(blocking=False):
            self.is_awaited.set()
            self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def test_what_a_thread_sends_while_another_flushes_comes_once_and_in_order(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, receiver = ends
    for end in ends:
        end.set_blocking(False)
    count = 0
    while not sender.has_unsent:
        count += 1
        sender.send(Cancel(count, 0))
    others = [threading.Thread(target=sender.send, args=[Cancel(count + 1, 0)])]
    send = sender.link._send
    lock = NotedLock()
    monkeypatch.setattr(sender, "_send_lock", lock)

    def send_beside_another(data: memoryview, descriptors: Sequence[int]) -> int:
        monkeypatch.setattr(sender.link, "_send", send)
        others[0].start()
        assert eventually(lambda: lock.is_awaited.is_set() or not others[0].is_alive())
        return send(data, descriptors)

    batches = []

    def read() -> None:
        while (received := receiver.receive()) is not None:
            assert isinstance(received.frame, Cancel)
            batches.append(received.frame.batch)

    read()
    monkeypatch.setattr(sender.link, "_send", send_beside_another)
    sender.flush()
    others[0].join()
    read()

    assert batches == list(range(1, count + 2))


def test_blocks_that_are_all_missing_are_blocks_that_say_why():
    blocks = memory_channel._PartialBlocks({}, "no descriptors are left")

    assert blocks
    with pytest.raises(UnavailableError, match="no descriptors are left"):
        blocks[7]
