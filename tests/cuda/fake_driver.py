# SPDX-License-Identifier: Apache-2.0
"""A driver of CUDA's without a GPU: host memory stands for that of devices, and all is counted."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import threading
from collections import Counter

from pytriton.runtime.cuda import driver as cuda_driver
from pytriton.runtime.cuda.driver import CudaError
from tests.e2e.waiting import DEADLINE_S


class FakeMachine:
    """The memory of devices that processes export to one another."""

    def __init__(self):
        self.exported = {}  # address by handle
        self._numbers = itertools.count(1)

    def export(self, address):
        for handle, exported in self.exported.items():
            if exported == address:
                return handle
        handle = next(self._numbers).to_bytes(8, "little") * 8
        self.exported[handle] = address
        return handle


class FakeDriver:
    """One process's driver; see `pytriton.runtime.cuda.driver.Driver`.

    Attributes:
        active: The devices whose primary context is in use.
        registered: The sizes of registered host memory, by address.
        failing: The error code that a method gives, by its name.
        gates: Events that a method waits for before it does anything, by its name.
        calls: How often each method was called.
    """

    def __init__(self, machine=None, *, active=(0,)):
        self.machine = machine or FakeMachine()
        self.active = list(active)
        self.visible = [0, 1]
        self.registered = {}
        self.allocated = {}
        self.allocation_ids = {}
        self._numbers = itertools.count(1)
        self.opened = Counter()
        self.retained = Counter()
        self.failing = {}
        self.gates = {}
        self.calls = Counter()
        self.log = []
        self._current = threading.local()

    def active_devices(self):
        self._count("active_devices", needs_context=False)
        return list(self.active)

    @contextlib.contextmanager
    def using(self, device):
        self._count("using", needs_context=False)
        before = getattr(self._current, "device", None)
        self._current.device = device
        if device not in self.active:
            self.active.append(device)
        try:
            yield
        finally:
            self._current.device = before

    def make_current(self, device):
        self._count("make_current", device, needs_context=False)
        self._current.device = device
        if device not in self.active:
            self.active.append(device)

    def uuid_of(self, device):
        self._count("uuid_of", device, needs_context=False)
        return bytes([device]) * 16

    def device_with(self, uuid):
        self._count("device_with", uuid, needs_context=False)
        for device in self.visible:
            if bytes([device]) * 16 == uuid:
                return device
        raise CudaError("device_with", cuda_driver.NO_DEVICE)

    def retain_context(self, device):
        self._count("retain_context", needs_context=False)
        self.retained[device] += 1
        if device not in self.active:
            self.active.append(device)

    def release_context(self, device):
        self._count("release_context", needs_context=False)
        assert self.retained[device], "it was not retained"
        self.retained[device] -= 1

    def allow_captures(self):
        self._count("allow_captures", needs_context=False)

    def synchronize(self):
        self._count("synchronize")

    def synchronize_default(self):
        self._count("synchronize_default")

    def order_after_default(self, stream):
        self._count("order_after_default", stream)

    def drain(self, page):
        self._count("drain", page)
        ctypes.string_at(page, 4096)

    def register_host(self, address, size):
        self._count("register_host", address, size)
        for start, length in self.registered.items():
            if start < address + size and address < start + length:
                raise CudaError("register", cuda_driver.HOST_MEMORY_ALREADY_REGISTERED)
        # The driver pins pages: memory that is not mapped any more would be an error here.
        ctypes.string_at(address, 1)
        ctypes.string_at(address + size - 1, 1)
        self.registered[address] = size

    def unregister_host(self, address):
        self._count("unregister_host", address)
        ctypes.string_at(address, 1)  # it has to be mapped still
        if self.registered.pop(address, None) is None:
            raise CudaError("unregister", cuda_driver.HOST_MEMORY_NOT_REGISTERED)

    def copy_to_host(self, target, source, size):
        self._count("copy_to_host", target, source, size)
        ctypes.memmove(target, source, size)

    def copy_to_device(self, target, source, size):
        self._count("copy_to_device", target, source, size)
        ctypes.memmove(target, source, size)

    def copy_on_device(self, target, source, size):
        self._count("copy_on_device", target, source, size)
        ctypes.memmove(target, source, size)

    def allocate(self, size):
        self._count("allocate", size)
        buffer = (ctypes.c_ubyte * size)()
        self.allocated[ctypes.addressof(buffer)] = buffer
        self.allocation_ids[ctypes.addressof(buffer)] = next(self._numbers)
        return ctypes.addressof(buffer)

    def free(self, address):
        self._count("free", address)
        if self.allocated.pop(address, None) is None:
            raise CudaError("free", cuda_driver.INVALID_VALUE)

    def extent_of(self, address):
        self._count("extent_of", address)
        for base, buffer in self.allocated.items():
            if base <= address < base + len(buffer):
                return base, len(buffer)
        raise CudaError("extent_of", cuda_driver.INVALID_VALUE)

    def allocation_id(self, address):
        self._count("allocation_id", address)
        return self.allocation_ids[self.extent_of(address)[0]]

    def device_of(self, address):
        self._count("device_of", address)
        self.extent_of(address)
        return 0

    def export_memory(self, address):
        self._count("export_memory", address)
        return self.machine.export(address)

    def open_memory(self, handle):
        self._count("open_memory", handle)
        if handle not in self.machine.exported:
            raise CudaError("open_memory", cuda_driver.INVALID_VALUE)
        address = self.machine.exported[handle]
        self.opened[address] += 1
        return address

    def close_memory(self, address):
        self._count("close_memory", address)
        if not self.opened[address]:
            raise CudaError("close_memory", cuda_driver.INVALID_VALUE)
        self.opened[address] -= 1

    def _count(self, name, *arguments, needs_context=True):
        self.calls[name] += 1
        self.log.append((name, *arguments))
        if name in self.gates:
            assert self.gates[name].wait(DEADLINE_S), f"nobody has opened the gate of {name}"
        if name in self.failing:
            raise CudaError(name, self.failing[name])
        if needs_context and getattr(self._current, "device", None) is None:
            raise CudaError(name, cuda_driver.INVALID_CONTEXT)
