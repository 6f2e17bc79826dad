# SPDX-License-Identifier: Apache-2.0
"""What the bytes of clients cost a server: calls of Python functions, counted for each read.

A few bytes must not make much work. Times say little on a simulated machine, but the number of
calls is the same on every machine.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from tests.simulation.event_loop import SimulatedTransport
from tests.simulation.machine import Machine

COUNTED = ("floods",)  # profiles; counting takes time
_CALLS_PER_BYTE = 4
_FREE_CALLS = 15_000  # whatever is read: it may let the server send a whole queue


class Costs:
    """Counts the calls that reads of connections cause."""

    def __init__(self, machine: Machine) -> None:
        self.findings: list[str] = []
        self._machine = machine

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count meanwhile, and find reads that cost too much."""
        original = SimulatedTransport._read

        def read(transport: Any) -> bool:
            socket, thread = transport._socket, self._machine.current
            unread_bytes = sum(len(each.data) for each in socket.file.inbox)
            calls = 0

            def count(_frame: Any, event: str, _argument: Any) -> None:
                nonlocal calls
                # Other processes may run before a system call of this one.
                if event == "call" and self._machine.current is thread:
                    calls += 1

            sys.setprofile(count)
            try:
                return original(transport)
            finally:
                sys.setprofile(None)
                self._judge(calls, unread_bytes)

        SimulatedTransport._read = read  # type: ignore[method-assign]
        try:
            yield
        finally:
            SimulatedTransport._read = original  # type: ignore[method-assign]

    def _judge(self, calls: int, size: int) -> None:
        if calls > _FREE_CALLS + _CALLS_PER_BYTE * size and not self.findings:
            self.findings.append(f"a read of {size} bytes took {calls} calls")
