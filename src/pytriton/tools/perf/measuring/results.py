# SPDX-License-Identifier: Apache-2.0
"""The results of a run: levels with their numbers."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence

from pytriton.tools.perf.measuring.stability import LevelStatus
from pytriton.tools.perf.measuring.summary import Window, WindowSummary


class Mode(enum.Enum):
    """What the load of a run is."""

    CONCURRENCY = "concurrency"
    RATE = "request_rate"
    INTERVALS = "intervals"
    SCHEDULE = "schedule"
    PERIODIC = "periodic_concurrency"

    @property
    def is_rate(self) -> bool:
        return self in {Mode.RATE, Mode.INTERVALS, Mode.SCHEDULE}


@dataclasses.dataclass(frozen=True, slots=True)
class LevelResult:
    """A level that was measured.

    Attributes:
        value: Requests under way, or requests a second.
        status: How it ended.
        summary: The numbers of its last windows.
        windows: All windows if they are exported, else the last ones.
        trials: How many windows there were.
        wall_offset_ns: What makes the records' times those of the system's clock.
    """

    mode: Mode
    value: float
    status: LevelStatus
    summary: WindowSummary
    windows: Sequence[Window] = ()
    trials: int = 0
    wall_offset_ns: int = 0


def number_text(value: float) -> str:
    """A number as C++ prints it: six digits, and no point if it is whole."""
    return f"{value:g}"
