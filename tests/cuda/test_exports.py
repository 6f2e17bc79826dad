# SPDX-License-Identifier: Apache-2.0
"""Tensors that a process exports to others, and what it was lent by them."""

from __future__ import annotations

import gc
import os
import sys
import threading
import warnings

import numpy as np
import pytest

from pytriton.base.errors import InternalError, UnavailableError
from pytriton.base.messages import DevicePlace
from pytriton.runtime.cuda import device_array
from pytriton.runtime.cuda import driver as cuda_driver
from pytriton.runtime.cuda.device_array import DeviceArray, Order
from pytriton.runtime.cuda.exports import Exports, NotShareableError
from pytriton.runtime.cuda.regions import MOST_ALLOCATIONS, OpenRegions
from pytriton.runtime.cuda.registration import Registrar
from pytriton.runtime.transport import memory
from tests.cuda.fake_driver import FakeDriver, FakeMachine

FLOAT = np.dtype(np.float32)
GPU = bytes(16)


class Producer:
    """A process with an allocation, in which arrays are."""

    def __init__(self, machine, size=4096):
        self.driver = FakeDriver(machine)
        self.gone = []
        self.exports = Exports(lambda: self.driver, self.gone.extend)
        self.address = self.allocate(size)

    def allocate(self, size=4096):
        with self.driver.using(0):
            return self.driver.allocate(size)

    def free(self, address):
        with self.driver.using(0):
            self.driver.free(address)

    def array(self, offset=0, count=4, address=None, order=Order.COMPLETE):
        start = (address or self.address) + offset
        return DeviceArray(start, 0, FLOAT, (count,), object(), order)

    def add(self, *arguments, **options):
        """Returns what others need, and the allocations that were found to be freed."""
        self.gone.clear()
        return self.exports.add(self.array(*arguments, **options)), list(self.gone)


@pytest.fixture
def producer(monkeypatch):
    producer = Producer(FakeMachine())
    monkeypatch.setattr(cuda_driver, "load", lambda: producer.driver)
    return producer


def reason_of(exports, array, gpu=b""):
    with pytest.raises(NotShareableError) as failure:
        exports.add(array, gpu)
    return failure.value.reason


def test_arrays_of_an_allocation_share_its_handle(producer):
    first, _ = producer.add(0)
    second, _ = producer.add(64)

    assert producer.driver.calls["export_memory"] == 1
    assert (first.handle, first.allocation) == (second.handle, second.allocation)
    assert (first.offset, second.offset, second.size) == (0, 64, 16)
    assert first.gpu == GPU
    assert first.block != second.block


def test_array_is_kept_until_it_is_released(producer):
    export, _ = producer.add()

    assert len(producer.exports) == 1
    producer.exports.release([export.block, 99])
    assert len(producer.exports) == 0
    assert producer.exports.kept(export.block) is None


@pytest.mark.parametrize(
    "order, call", [(Order.DEFAULT, "synchronize_default"), (Order.UNKNOWN, "synchronize")]
)
def test_array_is_complete_before_others_hear_of_it(producer, order, call):
    producer.add(order=order)
    names = [entry[0] for entry in producer.driver.log]

    assert names.index(call) < names.index("export_memory")


def test_allocation_that_cannot_be_exported_is_asked_for_once(producer):
    producer.driver.failing["export_memory"] = cuda_driver.INVALID_VALUE

    assert reason_of(producer.exports, producer.array()) == "cannot_export"
    assert reason_of(producer.exports, producer.array()) == "cannot_export"
    assert producer.driver.calls["export_memory"] == 1
    assert len(producer.exports) == 0


@pytest.mark.parametrize("call", ["synchronize", "uuid_of", "using", "allocation_id", "extent_of"])
def test_error_of_the_driver_lets_a_tensor_go_through_the_host(producer, call):
    producer.driver.failing[call] = cuda_driver.ILLEGAL_ADDRESS

    assert reason_of(producer.exports, producer.array(order=Order.UNKNOWN)) == "driver_error"


def test_failed_assertion_of_a_kernel_is_no_property_of_an_allocation(producer):
    producer.driver.failing["export_memory"] = cuda_driver.ASSERT

    assert reason_of(producer.exports, producer.array()) == "driver_error"


def test_missing_driver_lets_a_tensor_go_through_the_host(producer, monkeypatch):
    monkeypatch.undo()  # the fake of the fixture
    monkeypatch.setattr(cuda_driver, "LIBRARY", "libnone.so.1")
    monkeypatch.setattr(cuda_driver, "_initialized", [])

    assert reason_of(Exports(device_array.usable_driver), producer.array()) == "driver_error"


def test_consumer_of_another_device_gets_a_copy(producer):
    assert reason_of(producer.exports, producer.array(), bytes([1]) * 16) == "other_device"
    export = producer.exports.add(producer.array(), GPU)
    assert export.gpu == GPU


def test_freed_allocation_is_found_with_the_next_one(producer):
    old, _ = producer.add()
    producer.exports.release([old.block])
    producer.free(producer.address)
    new, gone = producer.add(address=producer.allocate())

    assert gone == [old.allocation]
    assert new.allocation != old.allocation
    assert producer.add(address=producer.allocate())[1] == []


def test_freed_allocation_is_told_although_the_next_one_cannot_be_exported(producer):
    old, _ = producer.add()
    producer.exports.release([old.block])
    producer.free(producer.address)
    producer.driver.failing["export_memory"] = cuda_driver.INVALID_VALUE
    new = producer.array(address=producer.allocate())

    assert reason_of(producer.exports, new) == "cannot_export"
    assert producer.gone == [old.allocation]


class Consumer:
    """Another process, which opens what was exported."""

    def __init__(self, producer):
        self.driver = FakeDriver(producer.driver.machine)
        self.driver.allocated = producer.driver.allocated
        self.ended = []
        self.regions = OpenRegions(lambda: self.driver, self.ended.append)

    def lease(self, export, lease=1, **changes):
        values = {"number": export.allocation, "gpu": export.gpu, **changes}
        place = DevicePlace(
            "of instance 'a'",
            values["number"],
            export.handle,
            5,  # the number that the producer knows the device by
            export.allocation_size,
            values.get("offset", export.offset),
            export.size,
            values["gpu"],
            lease,
        )
        return self.regions.lease(place, FLOAT, (export.size // 4,))


@pytest.fixture
def consumer(producer, monkeypatch):
    monkeypatch.setattr("pytriton.runtime.cuda.regions.observers", [])  # other tests have added one
    return Consumer(producer)


def test_lease_ends_when_the_last_array_is_gone(producer, consumer):
    export, _ = producer.add(64)
    array = consumer.lease(export, 7)
    again = DeviceArray(array.address, 0, FLOAT, (1,), array.owner)

    assert (array.address, array.device) == (producer.address + 64, 0)
    assert array.order is Order.COMPLETE
    del array
    gc.collect()
    assert consumer.ended == []
    del again
    gc.collect()
    assert consumer.ended == [7]


def test_lease_ends_after_the_work_of_the_device(producer, consumer, monkeypatch):
    registrar = Registrar(lambda: consumer.driver, 1 << 30)
    monkeypatch.setattr(memory, "observers", [registrar])
    monkeypatch.setattr("pytriton.runtime.cuda.regions.observers", [registrar])
    export, _ = producer.add()
    array = consumer.lease(export)
    del array
    gc.collect()

    assert registrar.wait_until_done(30)
    registrar.stop()
    names = [entry[0] for entry in consumer.driver.log]
    assert "drain" in names
    assert consumer.ended == [1]


def test_memory_is_closed_after_the_work_of_the_device(producer, consumer, monkeypatch):
    registrar = Registrar(lambda: consumer.driver, 1 << 30)
    monkeypatch.setattr("pytriton.runtime.cuda.regions.observers", [registrar])
    export, _ = producer.add()
    array = consumer.lease(export)
    consumer.regions.drop([export.allocation])
    consumer.driver.gates["drain"] = is_done = threading.Event()
    del array
    gc.collect()
    closed_before = consumer.driver.calls["close_memory"]
    is_done.set()

    assert registrar.wait_until_done(30)
    registrar.stop()
    assert closed_before == 0
    assert consumer.driver.opened[producer.address] == 0
    assert consumer.driver.retained[0] == 0


def test_lease_without_a_thread_waits_for_the_device(producer, consumer):
    array = consumer.lease(producer.add()[0])
    del array
    gc.collect()

    assert consumer.driver.calls["synchronize"] == 1
    assert consumer.ended == [1]


def test_forked_process_leaves_memory_to_its_parent(producer, consumer):
    export, _ = producer.add()
    array = consumer.lease(export)
    copy = device_array.copy_to_device(np.ones(2, np.float32), 0)
    logs = [producer.driver.log, consumer.driver.log]
    before = [len(log) for log in logs]
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads beside a fork
        pid = os.fork()
    if pid == 0:
        consumer.regions.drop([export.allocation])
        del array, copy
        gc.collect()
        os.write(writer, repr([log[at:] for log, at in zip(logs, before, strict=True)]).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        calls = answer.read()
    os.waitpid(pid, 0)

    assert calls == "[[], []]"


@pytest.mark.parametrize("call", ["synchronize", "using"])
def test_lease_ends_also_if_the_device_has_failed(producer, consumer, call):
    array = consumer.lease(producer.add()[0])
    consumer.driver.failing[call] = cuda_driver.LAUNCH_FAILED
    del array
    gc.collect()

    assert consumer.ended == [1]


def test_allocation_is_opened_once_for_all_leases(producer, consumer):
    arrays = [consumer.lease(producer.add(16 * number)[0], number + 1) for number in range(3)]

    assert consumer.driver.calls["open_memory"] == 1
    assert consumer.regions.lease_at(arrays[1]) == (arrays[1].owner, 0)
    assert arrays[1].owner.number == 2
    part = DeviceArray(arrays[1].address + 4, 0, FLOAT, (3,), None)
    assert consumer.regions.lease_at(part) == (arrays[1].owner, 4)
    beyond = DeviceArray(arrays[1].address + 4, 0, FLOAT, (4,), None)
    assert consumer.regions.lease_at(beyond) is None
    assert consumer.regions.is_open_at(beyond)


def test_allocation_that_was_dropped_is_closed_after_the_tensor_that_came_late(producer, consumer):
    export, _ = producer.add()
    consumer.regions.drop([export.allocation])
    array = consumer.lease(export)

    assert consumer.driver.opened[producer.address] == 1
    del array
    gc.collect()
    assert consumer.driver.opened[producer.address] == 0


def test_leases_may_be_added_while_one_is_looked_for(producer, consumer):
    export, _ = producer.add()
    arrays = [consumer.lease(export, number) for number in range(200)]
    added = []

    def add():
        while len(added) < 2000:
            added.append(consumer.lease(export, 1000 + len(added)))

    adding = threading.Thread(target=add)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        adding.start()
        while adding.is_alive():
            assert consumer.regions.lease_at(arrays[0]) is not None
    finally:
        sys.setswitchinterval(interval)
        adding.join()


def test_few_allocations_stay_open(producer, consumer):
    for number in range(MOST_ALLOCATIONS + 3):
        export, _ = producer.add(address=producer.allocate(64))
        consumer.lease(export, number)

    assert len(consumer.regions) == MOST_ALLOCATIONS
    assert consumer.driver.calls["close_memory"] == 3


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"gpu": bytes([9]) * 16}, "cannot be opened"),
        ({"offset": 4090}, "has 4096 bytes, and no 16 from 4090"),
    ],
)
def test_memory_that_cannot_be_used_is_given_back(producer, consumer, changes, text):
    export, _ = producer.add()

    with pytest.raises(UnavailableError, match=text):
        consumer.lease(export, 3, **changes)
    assert consumer.ended == [3]


def test_memory_that_the_driver_does_not_open_is_given_back(producer, consumer):
    consumer.driver.failing["open_memory"] = cuda_driver.INVALID_VALUE

    with pytest.raises(UnavailableError, match=r"of instance 'a' cannot be opened: .* error 1"):
        consumer.lease(producer.add()[0], 3)
    assert consumer.ended == [3]


def test_gather_makes_one_array_of_several(producer):
    parts = [np.full((rows, 2), rows, np.float32) for rows in (1, 2)]
    first = device_array.copy_to_device(parts[0], 0)
    whole = device_array.gather((first, parts[1]), 0)

    assert whole.shape == (3, 2)
    assert whole.copy().tolist() == np.concatenate(parts).tolist()
    held = len(producer.driver.allocated)
    del whole
    gc.collect()
    assert len(producer.driver.allocated) == held - 1
    assert producer.driver.retained[0] == 1


def test_memory_that_cannot_be_freed_does_not_keep_its_context(producer, caplog):
    array = device_array.copy_to_device(np.ones(2, np.float32), 0)
    producer.driver.failing["free"] = cuda_driver.ILLEGAL_ADDRESS
    del array
    gc.collect()

    assert "memory of GPU 0 cannot be freed" in caplog.text
    assert producer.driver.retained[0] == 0


def test_gather_without_memory_leaves_nothing(producer):
    producer.driver.failing["allocate"] = cuda_driver.OUT_OF_MEMORY

    with pytest.raises(InternalError, match=r"could not be copied to GPU 0: .* error 2"):
        device_array.copy_to_device(np.ones(2, np.float32), 0)
    assert producer.driver.retained[0] == 0
