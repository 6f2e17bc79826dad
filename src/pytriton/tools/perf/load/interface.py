# SPDX-License-Identifier: Apache-2.0
"""The seam between the load generator and what measures with it.

`Load` is what measuring needs; `tools.perf.load.process_load.ProcessLoad` is the real one, in
processes of its own.
"""

from __future__ import annotations

from typing import Protocol

from pytriton.tools.perf.load.levels import Level
from pytriton.tools.perf.load.records import Records


class GeneratorError(Exception):
    """The load cannot be made: its message says what was expected and what came."""


class Load(Protocol):
    """Makes load, level after level, and records each request.

    Made for a `LoadPlan`. Used by one thread. All times are those of `now_ns`.
    """

    def start(self, level: Level, requests: int | None = None) -> None:
        """Begin to send requests.

        Args:
            level: How much load.
            requests: Send exactly so many, then no more; None: until the level changes.

        Raises:
            LoadError: the plan is not possible, or the server cannot be reached.
        """

    def change(self, level: Level, requests: int | None = None) -> None:
        """Change the level; connections and requests under way stay.

        Args:
            level: How much load.
            requests: Send exactly so many more; None: until the level changes.

        Raises:
            LoadError: the level is not possible, or the generator died.
        """

    def wait(self, seconds: float) -> bool:
        """Wait, and let the load go on.

        Args:
            seconds: The longest time; it ends sooner if all that the level asks for has ended.

        Returns:
            True if all that the level asks for has ended; never for levels without an end.

        Raises:
            LoadError: the generator died.
        """

    def take(self) -> Records:
        """The requests that ended since the last call.

        Raises:
            LoadError: the generator died.
        """

    def now_ns(self) -> int:
        """The clock of the records: that of `time.monotonic_ns`."""

    def stop(self, *, at_once: bool = False) -> Records:
        """End the load and the processes that make it; may be called twice.

        Args:
            at_once: True gives up the requests under way; False waits some seconds for their
                answers, unless an interrupt comes.

        Returns:
            The requests that ended since the last `take`.
        """
