# SPDX-License-Identifier: Apache-2.0
"""What front ends hear of regions, and when a change counts as known to all."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from pytriton.serving.server.frontend.regions import RegionFeed
from pytriton.serving.server.shared_memory.regions import Regions
from pytriton.serving.server.shared_memory.shared_memory import LocalRegions
from tests.server.shared_memory.test_regions import FakeFile


class Reader:
    """A front end that keeps what it was sent."""

    def __init__(self):
        self.frames = []
        self.descriptors = []

    def send_regions(self, frame, descriptors):
        self.frames.append(frame)
        self.descriptors += descriptors

    @property
    def names(self):
        names = set()
        for frame in self.frames:
            names |= {record.name for record in frame.added}
            names -= set(frame.removed)
        return names


class Scene:
    def __init__(self, loop):
        self.files = []
        self.regions = LocalRegions(Regions(self.open, 1000))
        self.feed = RegionFeed(self.regions, loop)

    def open(self, name):
        file = FakeFile()
        self.files.append(weakref.ref(file))
        return file

    def reader(self):
        reader = Reader()
        self.feed.add(reader)
        return reader

    def take(self, reader, index=-1):
        self.feed.on_taken(reader, reader.frames[index].number)


def run(test):
    async def main():
        await test(Scene(asyncio.get_running_loop()))

    asyncio.run(main())


def test_registering_is_done_when_every_front_end_has_the_region():
    async def test(scene):
        first, second = scene.reader(), scene.reader()
        registering = asyncio.ensure_future(scene.regions.register("r", "k", 0, 4))
        await asyncio.sleep(0)
        scene.take(first)
        await asyncio.sleep(0)
        assert not registering.done()
        scene.take(second)
        await registering

        assert first.names == second.names == {"r"}
        assert first.descriptors == [7]

    run(test)


def test_unregistering_is_told_to_all():
    async def test(scene):
        reader = scene.reader()
        for name in "ab":
            registering = asyncio.ensure_future(scene.regions.register(name, "k", 0, 4))
            await asyncio.sleep(0)
            scene.take(reader)
            await registering
        unregistering = asyncio.ensure_future(scene.regions.unregister("a"))
        await asyncio.sleep(0)
        assert not unregistering.done()
        scene.take(reader)
        await unregistering

        assert reader.names == {"b"}

    run(test)


@pytest.mark.parametrize("count", [0, 1, 250])
def test_later_front_end_gets_all_regions_in_messages_of_a_limited_size(count):
    async def test(scene):
        for number in range(count):
            await scene.regions.register(f"r{number}", "k", 0, 4)
        reader = scene.reader()

        assert len(reader.names) == len(reader.descriptors) == count
        assert all(len(frame.added) <= 100 for frame in reader.frames)

    run(test)


def test_front_end_that_is_started_meanwhile_delays_no_answer_for_ever():
    async def test(scene):
        first = scene.reader()
        registering = asyncio.ensure_future(scene.regions.register("r", "k", 0, 4))
        await asyncio.sleep(0)
        second = scene.reader()
        unregistering = asyncio.ensure_future(scene.regions.unregister("r"))
        await asyncio.sleep(0)
        scene.take(first, 0)
        await asyncio.sleep(0)
        assert registering.done()
        for index in range(len(second.frames)):
            scene.take(second, index)
        scene.take(first)
        await unregistering

        assert first.names == second.names == set()

    run(test)


def test_front_end_that_ends_does_not_keep_a_client_waiting():
    async def test(scene):
        reader = scene.reader()
        registering = asyncio.ensure_future(scene.regions.register("r", "k", 0, 4))
        await asyncio.sleep(0)
        assert not registering.done()
        scene.feed.remove(reader)

        await registering

    run(test)


def test_descriptor_is_open_until_it_has_arrived():
    async def test(scene):
        reader = scene.reader()
        registering = asyncio.ensure_future(scene.regions.register("r", "k", 0, 4))
        unregistering = asyncio.ensure_future(scene.regions.unregister("r"))
        await asyncio.sleep(0)
        gc.collect()
        assert scene.files[0]() is not None
        scene.take(reader, 0)
        gc.collect()
        assert scene.files[0]() is None
        scene.take(reader, 1)
        await asyncio.gather(registering, unregistering)

    run(test)
