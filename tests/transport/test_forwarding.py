# SPDX-License-Identifier: Apache-2.0
"""A block of one process that a second one passes on to a third, without a copy.

The three are `owner`, `middle` and `reader`; the middle has a channel to each of the others. Any of
them may end at any moment, and in the end nothing is lent, mapped or open.
"""

from __future__ import annotations

import contextlib
import gc
import pathlib
import random

import numpy as np
import pytest

from pytriton.base.dtypes import FP32
from pytriton.runtime.transport.arena import (
    SEGMENT_BYTES,
    Arena,
    Block,
    RemoteBlock,
    block_bytes,
    give_up,
)
from pytriton.runtime.transport.frames import Execute
from pytriton.runtime.transport.link import socket_pair
from pytriton.runtime.transport.memory import PORTABLE_SETTING
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.refs import TensorRef

COUNT = 1 << 14  # elements of a block: 64 KiB


class Trio:
    """Three ends with an arena each, and two channels."""

    def __init__(self) -> None:
        self.arenas = {name: Arena() for name in ("owner", "middle", "reader")}
        left, right = socket_pair()
        self.owner = MemoryChannel(left, self.arenas["owner"])
        self.from_owner = MemoryChannel(right, self.arenas["middle"])
        left, right = socket_pair()
        self.to_reader = MemoryChannel(left, self.arenas["middle"])
        self.reader = MemoryChannel(right, self.arenas["reader"])
        self.all = [self.owner, self.from_owner, self.to_reader, self.reader]
        for channel in self.all:
            channel.set_blocking(False)

    def send(self, value: float) -> None:
        array = np.full(COUNT, value, np.float32)
        payload = self.owner.payload()
        block, offset = payload.add([array.tobytes()], array.nbytes)
        ref = TensorRef("x", FP32.number, array.shape, offset, array.nbytes, block)
        self.owner.send(Execute(1, [1], [ref]), payload)

    def forward(self, array: np.ndarray) -> None:
        """The middle passes an array on that lies in a block of the owner's."""
        block = block_of(array)
        offset = array.__array_interface__["data"][0] - block.__array_interface__["data"][0]
        payload = self.to_reader.payload()
        number = payload.forward(block)
        ref = TensorRef("x", FP32.number, array.shape, offset, array.nbytes, number)
        self.to_reader.send(Execute(1, [1], [ref]), payload)

    def pass_through(self, value: float) -> np.ndarray:
        """What the reader has of a block that the middle has passed on and let go."""
        self.send(value)
        self.forward(*take_all(self.from_owner))
        (read,) = take_all(self.reader)
        return read

    def tell(self) -> None:
        """All say what they have to say about memory, and hear it, until nothing is left."""
        for _ in range(4):
            for channel in self.all:
                if channel.fileno() >= 0:
                    try:
                        channel.send_memory_update()
                    except OSError:
                        channel.close()
            for channel in self.all:
                take_all(channel)

    def close(self, *names: str) -> None:
        for name in names:
            ends = {"owner": [self.owner], "reader": [self.reader]}
            for channel in ends.get(name, [self.from_owner, self.to_reader]):
                channel.close()

    def lent(self) -> list[int]:
        return [channel.tracker.lent_count for channel in self.all]

    def mapped(self) -> list[int]:
        return [channel.tracker.mapped_count for channel in self.all]


def block_of(array: np.ndarray) -> RemoteBlock:
    while isinstance(array.base, np.ndarray):
        array = array.base
    assert isinstance(array.base, RemoteBlock | Block)
    return array.base


def bytes_of(array: np.ndarray) -> memoryview:
    """The bytes of an array that is a whole block, as the engine has them."""
    return block_bytes(block_of(array)).data


def take_all(channel: MemoryChannel) -> list[np.ndarray]:
    """The arrays of all messages that came; a channel whose peer is gone is closed."""
    arrays = []
    try:
        while channel.fileno() >= 0 and (received := channel.receive()) is not None:
            frame = received.frame
            if isinstance(frame, Execute):
                arrays += [received.array(ref) for ref in frame.inputs]
    except EOFError:
        channel.close()
    return arrays


def descriptors() -> int:
    return len(list(pathlib.Path("/dev/fd").iterdir()))


@pytest.fixture(params=["native", "portable"])
def trio(request, monkeypatch):
    monkeypatch.setenv(PORTABLE_SETTING, "1" if request.param == "portable" else "0")
    gc.collect()
    before = descriptors()
    made = Trio()
    yield made
    for channel in made.all:
        channel.close()
    gc.collect()
    assert descriptors() <= before + segments_of(made)


def segments_of(trio: Trio) -> int:
    """Descriptors that segments still have, each one for its mapping, too."""
    return sum(2 * arena.reserved_bytes // SEGMENT_BYTES for arena in trio.arenas.values())


def test_reader_has_the_owners_bytes_themselves(trio):
    trio.send(1)
    (array,) = take_all(trio.from_owner)
    trio.forward(array)
    (read,) = take_all(trio.reader)
    assert (read == 1).all()
    array[:] = 2

    assert (read == 2).all()
    assert trio.arenas["middle"].reserved_bytes == 0


def test_part_of_a_block_can_be_forwarded(trio):
    trio.send(1)
    (array,) = take_all(trio.from_owner)
    array[16:] = 5
    trio.forward(array[16:32])
    (read,) = take_all(trio.reader)

    assert read.tolist() == [5.0] * 16


# Tensors that a payload passes on by itself


def pass_on(trio: Trio, *pieces: memoryview) -> None:
    """Send pieces as one tensor from the middle to the reader."""
    size = sum(map(len, pieces))
    payload = trio.to_reader.payload()
    assert payload.add_parts(pieces) is None
    block, offset = payload.add(pieces, size)
    ref = TensorRef("x", FP32.number, (size // 4,), offset, size, block)
    trio.to_reader.send(Execute(1, [1], [ref]), payload)


def test_tensor_that_is_given_up_is_passed_on_without_a_copy(trio):
    trio.send(1)
    (array,) = take_all(trio.from_owner)
    give_up(bytes_of(array))
    pass_on(trio, bytes_of(array))
    (read,) = take_all(trio.reader)

    assert (read == 1).all()
    assert trio.arenas["middle"].reserved_bytes == 0


def test_tensor_that_is_given_up_is_copied_for_a_reader_in_a_sandbox(trio):
    """It would map the whole segment of the owner, which has tensors of others."""
    trio.send(1)
    (array,) = take_all(trio.from_owner)
    give_up(bytes_of(array))
    trio.to_reader._keeps_to_arena = True
    pass_on(trio, bytes_of(array))
    (read,) = take_all(trio.reader)

    assert (read == 1).all()
    assert trio.arenas["middle"].reserved_bytes == SEGMENT_BYTES


def test_tensor_that_is_not_given_up_is_copied(trio):
    trio.send(1)
    (array,) = take_all(trio.from_owner)
    pass_on(trio, bytes_of(array))
    (read,) = take_all(trio.reader)
    array[:] = 2

    assert (read == 1).all()
    assert trio.arenas["middle"].reserved_bytes == SEGMENT_BYTES


def test_neighbours_in_a_block_are_passed_on_as_one_tensor(trio):
    trio.send(1)
    (array,) = take_all(trio.from_owner)
    data = bytes_of(array)
    give_up(data)
    pass_on(trio, data[: 4 * COUNT // 2], data[4 * COUNT // 2 :])
    (read,) = take_all(trio.reader)

    assert (read == 1).all()
    assert trio.arenas["middle"].reserved_bytes == 0


@pytest.mark.parametrize("is_swapped", [True, False])
def test_pieces_that_are_not_neighbours_are_joined(trio, is_swapped):
    trio.send(1)
    trio.send(2)
    first, second = map(bytes_of, take_all(trio.from_owner))
    half = 2 * COUNT
    pieces = [first[half:], first[:half]] if is_swapped else [first[:half], second[half:]]
    pass_on(trio, *pieces)
    (read,) = take_all(trio.reader)

    assert read.tolist() == [1.0] * (COUNT // 2) + [1.0 if is_swapped else 2.0] * (COUNT // 2)
    assert trio.arenas["middle"].reserved_bytes == SEGMENT_BYTES


def test_block_that_its_owner_still_reads_cannot_be_given_up(trio):
    block = trio.arenas["owner"].allocate(4 * COUNT)
    kept = block_bytes(block).view(np.float32)
    kept[:] = 1
    payload = trio.owner.payload()
    number, offset = payload.add([bytes_of(kept)], kept.nbytes)
    ref = TensorRef("x", FP32.number, kept.shape, offset, kept.nbytes, number)
    trio.owner.send(Execute(1, [1], [ref]), payload)
    (array,) = take_all(trio.from_owner)
    give_up(bytes_of(array))
    pass_on(trio, bytes_of(array))
    (read,) = take_all(trio.reader)
    read[:] = 2

    assert (kept == 1).all()


def test_block_of_another_arena_of_this_process_is_passed_on_without_a_copy(trio):
    other = Arena()
    array = block_bytes(other.allocate(4 * COUNT)).view(np.float32)
    array[:] = 3
    give_up(bytes_of(array))
    pass_on(trio, bytes_of(array))
    (read,) = take_all(trio.reader)
    assert (read == 3).all()
    assert trio.arenas["middle"].reserved_bytes == 0
    assert trio.reader.tracker.mapped_count == 1

    del array, read
    trio.tell()
    other.trim(idle_seconds=0)
    gc.collect()
    trio.tell()

    assert other.reserved_bytes == 0
    assert trio.lent() == [0, 0, 0, 0]
    assert trio.reader.tracker.mapped_count == 0


@pytest.mark.parametrize("first", ["middle", "reader"])
def test_owner_has_it_back_when_the_last_holder_lets_go(trio, first):
    trio.send(1)
    held = {"middle": take_all(trio.from_owner)}
    trio.forward(held["middle"][0])
    held["reader"] = take_all(trio.reader)
    del held[first]
    trio.tell()
    assert trio.owner.tracker.lent_count == 1

    held.clear()
    trio.tell()

    assert trio.lent() == [0, 0, 0, 0]
    for number in range(2, 5):  # the place is used again
        trio.send(number)
        take_all(trio.from_owner)
        trio.tell()
    assert trio.arenas["owner"].reserved_bytes == SEGMENT_BYTES


def test_block_that_is_forwarded_twice_comes_back_once_both_are_gone(trio):
    trio.send(1)
    (array,) = take_all(trio.from_owner)
    trio.forward(array)
    trio.forward(array)
    del array
    first, second = take_all(trio.reader)
    del first
    trio.tell()
    assert trio.owner.tracker.lent_count == 1
    assert (second == 1).all()

    del second
    trio.tell()

    assert trio.lent() == [0, 0, 0, 0]


def test_reader_can_answer_with_the_same_block(trio):
    read = trio.pass_through(1)
    payload = trio.reader.payload()
    number = payload.return_block(block_of(read))
    ref = TensorRef("x", FP32.number, read.shape, 0, read.nbytes, number)
    trio.reader.send(Execute(1, [1], [ref]), payload)
    del read, payload
    (answer,) = take_all(trio.to_reader)
    trio.tell()
    assert (answer == 1).all()
    assert trio.owner.tracker.lent_count == 1

    del answer
    trio.tell()

    assert trio.lent() == [0, 0, 0, 0]


def test_segment_that_the_owner_drops_is_unmapped_by_all(trio):
    for number in range(3):
        trio.send(number)
        (array,) = take_all(trio.from_owner)
        trio.forward(array)
        del array
        take_all(trio.reader)
        trio.tell()
    assert trio.mapped() == [0, 1, 0, 1]
    trio.owner.queue_dropped_segments(trio.arenas["owner"].trim(idle_seconds=0.0))
    trio.tell()

    assert trio.mapped() == [0, 0, 0, 0]


def test_middle_has_news_to_send_until_the_reader_knows_that_a_segment_is_gone(trio):
    trio.send(1.0)
    trio.forward(*take_all(trio.from_owner))
    received = take_all(trio.reader)
    has_news = [trio.to_reader.maps_memory]
    received.clear()
    trio.tell()
    has_news.append(trio.to_reader.maps_memory)
    trio.owner.queue_dropped_segments(trio.arenas["owner"].trim(idle_seconds=0.0))
    trio.owner.send_memory_update()
    trio.tell()

    assert has_news == [True, True]
    assert not trio.to_reader.maps_memory
    assert not trio.reader.maps_memory


def test_end_of_the_reader_lets_the_owner_never_reuse_what_it_may_read(trio):
    read = trio.pass_through(7)
    trio.to_reader.close()  # its connection is gone, itself maybe not
    trio.tell()
    assert trio.owner.tracker.lent_count == 0
    for number in range(20):
        trio.send(number)
        take_all(trio.from_owner)
        trio.tell()
    assert (read == 7).all()
    trio.owner.queue_dropped_segments(trio.arenas["owner"].trim(idle_seconds=0.0))

    assert trio.arenas["owner"].reserved_bytes == 0


def test_end_of_the_reader_counts_when_the_middle_lets_go(trio):
    trio.send(7)
    (array,) = take_all(trio.from_owner)
    trio.forward(array)
    trio.close("reader")
    trio.tell()
    assert (array == 7).all()
    assert trio.owner.tracker.lent_count == 1

    del array
    trio.tell()

    assert trio.owner.tracker.lent_count == 0


def test_end_of_the_owner_leaves_the_others_what_they_read(trio):
    read = trio.pass_through(7)
    trio.close("owner")
    trio.tell()
    assert (read == 7).all()

    del read
    trio.tell()

    assert trio.lent() == [0, 0, 0, 0]
    assert trio.mapped() == [0, 0, 0, 0]


def test_end_of_the_middle_leaves_nothing_lent(trio):
    read = trio.pass_through(7)
    trio.close("middle")
    trio.tell()

    assert (read == 7).all()
    assert trio.lent() == [0, 0, 0, 0]
    trio.arenas["owner"].trim(idle_seconds=0.0)
    assert trio.arenas["owner"].reserved_bytes == 0


class Play:
    """Random steps of three processes, each array with the value that it must keep."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.trio = Trio()
        self.held: dict[str, list[tuple[float, np.ndarray]]] = {"middle": [], "reader": []}
        self.ended: set[str] = set()
        self.next_value = 0.0

    def step(self) -> None:
        names = [*["send", "hear", "forward", "drop"] * 2, "tell", "end"]
        getattr(self, f"_{self.rng.choice(names)}")()
        for value, array in (*self.held["middle"], *self.held["reader"]):
            assert array[0] == array[-1] == value
        for part in (*self.trio.arenas.values(), *(channel.tracker for channel in self.trio.all)):
            part.check_integrity()

    def _send(self) -> None:
        if not self.ended & {"owner", "middle"}:
            self.next_value += 1
            self._try(self.trio.send, self.next_value)

    def _hear(self) -> None:
        for name, channel in (("middle", self.trio.from_owner), ("reader", self.trio.reader)):
            if name not in self.ended:
                self.held[name] += [(float(each[0]), each) for each in take_all(channel)]

    def _forward(self) -> None:
        if self.held["middle"] and not self.ended & {"middle", "reader"}:
            self._try(self.trio.forward, self.rng.choice(self.held["middle"])[1])

    def _drop(self) -> None:
        held = self.held[self.rng.choice(["middle", "reader"])]
        if held:
            del held[self.rng.randrange(len(held))]

    def _tell(self) -> None:
        self._hear()
        for channel in self.trio.all:
            if channel.fileno() >= 0:
                self._try(channel.send_memory_update)
        self._hear()
        for channel in (self.trio.owner, self.trio.to_reader):
            assert take_all(channel) == []
        if self.rng.random() < 0.3 and "owner" not in self.ended:
            gone = self.trio.arenas["owner"].trim(idle_seconds=0.0)
            self.trio.owner.queue_dropped_segments(gone)

    def _end(self) -> None:
        if self.rng.random() < 0.1:
            name = self.rng.choice(["owner", "middle", "reader"])
            self.ended.add(name)
            self.trio.close(name)
            if name == "middle":
                self.held["middle"].clear()

    def _try(self, work, *arguments) -> None:
        with contextlib.suppress(OSError):  # the peer ended, which is heard later
            work(*arguments)


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_lost_or_left_whoever_ends_when(seed):
    gc.collect()
    before = descriptors()
    play = Play(seed)
    for _ in range(120):
        play.step()
    play.held = {"middle": [], "reader": []}
    play.trio.tell()

    lent = play.trio.lent()
    assert lent == [0, 0, 0, 0]
    for arena in play.trio.arenas.values():
        arena.trim(idle_seconds=0.0)
        assert arena.reserved_bytes == 0
    for channel in play.trio.all:
        channel.close()
    del play
    gc.collect()
    assert descriptors() == before
