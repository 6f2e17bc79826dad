# SPDX-License-Identifier: Apache-2.0
"""Regions of GPU memory in the process of an instance: opened once, closed when unused."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.base.errors import InternalError, InvalidArgumentError
from pytriton.base.messages import DevicePlace
from pytriton.runtime.cuda import driver as cuda_driver
from pytriton.runtime.cuda.device_array import DeviceArray
from pytriton.runtime.cuda.regions import MOST_DROPPED, OpenRegions, PlacedArray
from tests.cuda.fake_driver import FakeDriver, FakeMachine

SIZE = 4096
FLOAT = np.dtype(np.float32)


class Scene:
    """A client's process with memory, and that of an instance, which opens it."""

    def __init__(self):
        self.machine = FakeMachine()
        self.client = FakeDriver(self.machine)
        self.driver = FakeDriver(self.machine, active=())
        self.regions = OpenRegions(lambda: self.driver)
        with self.client.using(0):
            self.address = self.client.allocate(SIZE)
            self.handle = self.client.export_memory(self.address)
        # The fake looks up sizes where memory was allocated.
        self.driver.allocated = self.client.allocated

    def place(self, number=1, offset=0, size=SIZE, **changes):
        values = {"region_size": SIZE, "handle": self.handle, **changes}
        return DevicePlace("r", number, values["handle"], 0, values["region_size"], offset, size)

    @property
    def open_count(self):
        return sum(self.driver.opened.values())

    def content(self, count, offset=0):
        copy = np.empty(count, FLOAT)
        with self.client.using(0):
            self.client.copy_to_host(copy.ctypes.data, self.address + offset, copy.nbytes)
        return copy.tolist()


@pytest.fixture
def scene():
    return Scene()


def test_region_is_opened_once(scene):
    arrays = [scene.regions.array(scene.place(offset=at), FLOAT, (2,)) for at in (0, 8, 16)]

    assert [each.address - scene.address for each in arrays] == [0, 8, 16]
    assert scene.driver.calls["open_memory"] == 1
    assert scene.driver.retained[0] == 1


def test_region_that_is_dropped_is_closed(scene):
    scene.regions.array(scene.place(), FLOAT, (2,))
    scene.regions.drop([1, 99])

    assert scene.open_count == 0
    assert scene.driver.retained[0] == 0
    assert len(scene.regions) == 0


def test_region_is_closed_after_the_last_tensor_on_it(scene):
    array = scene.regions.array(scene.place(), FLOAT, (2,))
    scene.regions.drop([1])

    assert scene.open_count == 1
    del array
    assert scene.open_count == 0


def test_output_of_a_request_that_was_running_is_written_and_its_region_closed(scene):
    scene.regions.array(scene.place(), FLOAT, (2,))
    scene.regions.drop([1])
    scene.regions.write(scene.place(), np.arange(2, dtype=FLOAT), "y")

    assert scene.content(2) == [0, 1]
    assert scene.open_count == 0
    assert len(scene.regions) == 0


def test_input_of_a_request_that_came_before_the_drop_closes_its_region(scene):
    scene.regions.drop([1])
    array = scene.regions.array(scene.place(), FLOAT, (2,))

    assert scene.open_count == 1
    del array
    assert scene.open_count == 0


def test_few_regions_that_were_dropped_are_remembered(scene):
    for number in range(MOST_DROPPED + 2):
        scene.regions.drop([number])

    assert list(scene.regions._dropped)[:1] == [2]


def test_region_that_cannot_be_opened_is_an_error_and_tried_again(scene):
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match=r"region 'r' cannot be opened.*open_memory"):
            scene.regions.array(scene.place(handle=bytes(64)), FLOAT, (2,))

    assert scene.driver.calls["open_memory"] == 2
    assert scene.open_count == 0
    assert scene.driver.retained[0] == 0


def test_region_with_less_memory_than_registered_is_refused_and_closed(scene):
    with pytest.raises(InvalidArgumentError, match=f"8192 bytes, but its memory has {SIZE}"):
        scene.regions.array(scene.place(region_size=8192), FLOAT, (2,))

    assert scene.open_count == 0


def test_missing_driver_is_an_error_of_the_request():
    def find():
        raise InternalError("there is no driver")

    with pytest.raises(InternalError, match="no driver"):
        OpenRegions(find).array(Scene().place(), FLOAT, (2,))


def test_host_array_is_written(scene):
    scene.regions.write(scene.place(offset=8, size=16), np.arange(3, dtype=FLOAT), "y")

    assert scene.content(3, offset=8) == [0, 1, 2]


def test_device_array_is_written_when_it_is_ready_and_done_when_it_returns(scene):
    with scene.driver.using(0):
        source = scene.driver.allocate(8)
        scene.driver.copy_to_device(source, np.array([5, 6], FLOAT).ctypes.data, 8)
    scene.driver.log.clear()
    scene.regions.write(scene.place(), DeviceArray(source, 0, FLOAT, (2,), None), "y")
    calls = [entry[0] for entry in scene.driver.log]

    assert scene.content(2) == [5, 6]
    assert calls[-3:] == ["synchronize", "copy_on_device", "synchronize_default"]


def test_output_that_does_not_fit_is_refused_before_anything_is_opened(scene):
    with pytest.raises(InternalError, match=r"output 'y' \(4 bytes\) should be at least 8 bytes"):
        scene.regions.write(scene.place(size=4), np.zeros(2, FLOAT), "y")

    assert scene.driver.calls == {}


@pytest.mark.parametrize("step", ["copy_to_device", "synchronize_default"])
def test_failed_copy_is_an_error_of_the_request(scene, step):
    scene.driver.failing[step] = cuda_driver.ILLEGAL_ADDRESS

    with pytest.raises(InternalError, match="failed to write to CUDA shared memory region 'r'"):
        scene.regions.write(scene.place(), np.zeros(2, FLOAT), "y")


def test_region_that_cannot_be_closed_harms_nobody(scene, caplog):
    scene.regions.array(scene.place(), FLOAT, (2,))
    scene.driver.failing["close_memory"] = cuda_driver.CONTEXT_IS_DESTROYED
    scene.regions.drop([1])

    assert "region 'r' cannot be closed" in caplog.text
    assert scene.driver.retained[0] == 0


def test_placed_array_has_its_shape_and_no_bytes():
    placed = PlacedArray.of(np.zeros((2, 3), FLOAT))

    assert (placed.shape, placed.dtype, placed.nbytes) == ((2, 3), FLOAT, 0)
    assert placed.tobytes() == b""
