# SPDX-License-Identifier: Apache-2.0
"""A place on which one request at a time is under way, and who is told what happens to it."""

from __future__ import annotations

import time
from typing import Protocol

from pytriton.tools.perf.load.choices import Choice

clock = time.monotonic_ns


class RequestLane:
    """One place, and the request on it."""

    __slots__ = (
        "answers",
        "begin_ns",
        "carrier",
        "choice",
        "first_ns",
        "is_busy",
        "is_delayed",
        "json_bytes",
        "number",
        "responses",
        "sent_ns",
        "times",
    )

    def __init__(self, number: int, carrier: Carrier) -> None:
        self.number = number
        self.carrier = carrier
        self.choice = Choice(0)
        self.begin_ns = 0
        self.sent_ns = 0
        self.first_ns = 0
        self.responses = 0
        self.is_busy = False
        self.is_delayed = False
        self.times: list[int] = []
        self.answers: list[bytes] = []
        self.json_bytes: list[int] = []


class Carrier(Protocol):
    """Carries the requests of lanes to the server: a connection, or calls on one."""

    def begin(self, lane: RequestLane) -> None:
        """Send the request of a lane; what comes of it is told to the `LaneListener`."""

    def open(self) -> object:
        """Connect now, if that has not happened; OSError if it cannot be done."""

    def close(self) -> None:
        """Close the connection; requests under way are forgotten."""


class LaneListener(Protocol):
    """Who is told what happens to requests."""

    @property
    def looks_at_answers(self) -> bool:
        """Whether `keep` is wanted."""

    def respond(self, lane: RequestLane, now_ns: int) -> None:
        """A response of a stream came."""

    def keep(self, lane: RequestLane, answer: bytes, json_bytes: int) -> None:
        """The content of a response, told only if `looks_at_answers`."""

    def finish(self, lane: RequestLane, now_ns: int, error: str = "") -> None:
        """The request ended."""

    def lose(self, lane: RequestLane, now_ns: int, error: str) -> None:
        """The request ended because its connection failed; the lane rests before the next."""
