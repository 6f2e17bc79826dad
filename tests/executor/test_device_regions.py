# SPDX-License-Identifier: Apache-2.0
"""Which instances hear that a region of GPU memory is gone, and who may use one."""

from __future__ import annotations

import pytest

from pytriton.base.errors import NotFoundError, UnsupportedError
from pytriton.base.messages import DeviceBytes, DevicePlace, DeviceUse, lone_batch_key
from pytriton.runtime.executor import device_regions


class FakeInstance:
    name = "i"

    def __init__(self, *, takes_device_memory=True):
        self.takes_device_memory = takes_device_memory
        self.dropped = []

    def drop_regions(self, numbers):
        self.dropped += numbers


class OtherInstance:
    name = "function"


def use_of(*numbers):
    inputs = {str(each): DevicePlace("r", each, bytes(64), 0, 8, 0, 8) for each in numbers}
    return DeviceUse(inputs, {})


def test_only_instances_that_used_a_region_hear_of_its_end():
    first, second = device_regions.add_region(), device_regions.add_region()
    one, both, none = FakeInstance(), FakeInstance(), FakeInstance()
    device_regions.use(use_of(first), one)
    device_regions.use(use_of(first, second), both)
    device_regions.remove_region(first)

    assert (one.dropped, both.dropped, none.dropped) == ([first], [first], [])
    device_regions.remove_region(second)
    assert both.dropped == [first, second]


def test_region_that_is_gone_cannot_be_used():
    number = device_regions.add_region()
    device_regions.remove_region(number)
    device_regions.remove_region(number)

    with pytest.raises(NotFoundError, match="Unable to find cuda shared memory region: 'r'"):
        device_regions.use(use_of(number), FakeInstance())


@pytest.mark.parametrize("instance", [OtherInstance(), FakeInstance(takes_device_memory=False)])
def test_instance_that_cannot_take_it_is_named(instance):
    number = device_regions.add_region()
    with pytest.raises(UnsupportedError, match=f"'{instance.name}' does not take tensors in CUDA"):
        device_regions.use(use_of(number), instance)

    device_regions.remove_region(number)


def test_instance_that_is_gone_is_forgotten():
    number = device_regions.add_region()
    device_regions.use(use_of(number), FakeInstance())

    device_regions.remove_region(number)


def test_device_bytes_have_a_size_and_no_bytes():
    data = DeviceBytes.of_size(100)

    assert len(data) == 100
    assert bytes(memoryview(data)) == b""


def test_lone_batch_keys_differ():
    assert lone_batch_key() != lone_batch_key()
