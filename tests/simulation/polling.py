# SPDX-License-Identifier: Apache-2.0
"""`select` of simulated processes."""

from __future__ import annotations

import errno
import os as real_os
import select as real_select
from typing import Any

from tests.simulation.files import File
from tests.simulation.machine import Machine
from tests.simulation.stand_in import StandIn

_POLL_ALL = real_select.POLLIN | real_select.POLLPRI | real_select.POLLOUT


class Poll:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._masks: dict[int, int] = {}

    def register(self, descriptor: Any, mask: int = _POLL_ALL) -> None:
        self._masks[descriptor if isinstance(descriptor, int) else descriptor.fileno()] = mask

    def modify(self, descriptor: Any, mask: int) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        if number not in self._masks:
            raise FileNotFoundError(errno.ENOENT, real_os.strerror(errno.ENOENT))
        self._masks[number] = mask

    def unregister(self, descriptor: Any) -> None:
        del self._masks[descriptor if isinstance(descriptor, int) else descriptor.fileno()]

    def poll(self, timeout_ms: float | None = None) -> list[tuple[int, int]]:
        machine = self._machine
        if (ready := self._ready()) or timeout_ms == 0:
            return ready
        deadline_ns = None
        if timeout_ms is not None and timeout_ms > 0:
            deadline_ns = machine.now_ns + round(timeout_ms * 1_000_000)
        thread = machine.current
        files = [machine.file_of(each) for each in self._masks]

        def wake(_: File) -> None:
            machine.wake(thread)

        for file in files:
            file.watchers.append(wake)
        try:
            while not (ready := self._ready()):
                if deadline_ns is not None and machine.now_ns >= deadline_ns:
                    break
                machine.wait(deadline_ns)
        finally:
            for file in files:
                if wake in file.watchers:
                    file.watchers.remove(wake)
        return ready

    def _ready(self) -> list[tuple[int, int]]:
        ready = []
        for descriptor, mask in self._masks.items():
            try:
                file = self._machine.file_of(descriptor)
            except OSError:
                ready.append((descriptor, real_select.POLLNVAL))
                continue
            found = 0
            if mask & real_select.POLLIN and file.is_readable:
                found |= real_select.POLLIN
            if mask & real_select.POLLOUT and file.is_writable:
                found |= real_select.POLLOUT
            if file.is_hung_up:
                found |= real_select.POLLHUP
            if file.is_reset:
                found |= real_select.POLLERR
            if found:
                ready.append((descriptor, found))
        return ready


class Select(StandIn):
    def poll(self) -> Poll:
        return Poll(self.machine)
