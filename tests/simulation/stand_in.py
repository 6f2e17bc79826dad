# SPDX-License-Identifier: Apache-2.0
"""What stands in for a module of the system; and `time`, by the clock of the machine."""

from __future__ import annotations

import types
from typing import Any

from tests.simulation.machine import SECOND_NS, Machine

SYSTEM_CALL_NS = 1000  # what one takes


class StandIn(types.ModuleType):
    """A module in place of another; names that it does not have are those of the other."""

    def __init__(self, real: types.ModuleType, machine: Machine) -> None:
        super().__init__(real.__name__)
        self.__dict__["real"] = real
        self.__dict__["machine"] = machine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["real"], name)


def deadline(machine: Machine, timeout_s: float | None) -> int | None:
    """Returns the time of the machine at which a wait ends; None without a timeout."""
    return None if timeout_s is None else machine.now_ns + max(0, round(timeout_s * SECOND_NS))


class Time(StandIn):
    """Reads the clock of the machine; the wall clock may jump."""

    def monotonic_ns(self) -> int:
        return self.machine.now_ns

    perf_counter_ns = process_time_ns = thread_time_ns = monotonic_ns

    def monotonic(self) -> float:
        return self.machine.now_ns / SECOND_NS

    perf_counter = process_time = thread_time = monotonic

    def time_ns(self) -> int:
        return self.machine.now_ns + self.machine.wall_offset_ns

    def time(self) -> float:
        return self.time_ns() / SECOND_NS

    def sleep(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        self.machine.sleep(max(SYSTEM_CALL_NS, round(seconds * SECOND_NS)))
