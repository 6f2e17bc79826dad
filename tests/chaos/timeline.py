# SPDX-License-Identifier: Apache-2.0
"""What was done to a server and when, for the report of a finding and for the oracle."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator

from tests.workload.oracle import Cause, Oracle


@dataclasses.dataclass(slots=True)
class Event:
    """Something that was done, and for how long the server was not as before."""

    began_s: float
    text: str
    ended_s: float | None = None  # None while it is not
    notes: list[str] = dataclasses.field(default_factory=list)

    def overlaps(self, since_s: float, until_s: float) -> bool:
        return self.began_s <= until_s and (self.ended_s is None or since_s <= self.ended_s)

    def __str__(self) -> str:
        until = "..." if self.ended_s is None else f"{self.ended_s:.3f}"
        notes = "".join(f"; {each}" for each in self.notes)
        return f"{self.began_s:9.3f} to {until:>9}  {self.text}{notes}"


class Timeline:
    """All events of a scene, in the order of their beginnings.

    Args:
        now: tells the time.
        oracle: is told what may explain how calls end, and until when.
    """

    def __init__(self, now: Callable[[], float], oracle: Oracle | None = None) -> None:
        self.now = now
        self.oracle = oracle
        self.events: list[Event] = []

    @contextlib.contextmanager
    def event(self, text: str, *causes: Cause, models: Collection[str] = ("",)) -> Iterator[Event]:
        """Something is done in this block, which explains how calls of these models end."""
        event = Event(self.now(), text)
        self.events.append(event)
        told = []
        if self.oracle is not None:
            told = [self.oracle.fault(cause, model) for cause in causes for model in models]
        try:
            yield event
        finally:
            event.ended_s = self.now()
            for fault in told:
                self.oracle.over(fault)

    def mark(self, text: str) -> None:
        """Something without effects."""
        now_s = self.now()
        self.events.append(Event(now_s, text, now_s))

    def around(self, since_s: float, until_s: float, margin_s: float = 2.0) -> list[Event]:
        return [
            each for each in self.events if each.overlaps(since_s - margin_s, until_s + margin_s)
        ]
