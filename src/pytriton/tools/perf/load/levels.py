# SPDX-License-Identifier: Apache-2.0
"""How much load: one record for each way to decide when the next request begins."""

from __future__ import annotations

import enum

import msgspec


class Arrivals(enum.Enum):
    """How the requests of a rate are spread over time."""

    CONSTANT = "constant"
    POISSON = "poisson"


class Concurrency(msgspec.Struct, frozen=True, tag=True):
    """Keep a number of requests under way.

    Attributes:
        number: The requests under way at any time, or the sequences, if the plan has sequences.
    """

    number: int


class RequestRate(msgspec.Struct, frozen=True, tag=True):
    """Begin a number of requests each second, however long they take.

    Attributes:
        per_second: The requests each second; may be a fraction.
        distribution: Evenly spaced, or with the random gaps of independent clients.
        seed: Makes the random gaps; the same seed makes the same gaps.
    """

    per_second: float
    distribution: Arrivals = Arrivals.CONSTANT
    seed: int = 0


class Intervals(msgspec.Struct, frozen=True, tag=True):
    """Wait these times between the beginnings of requests, again and again from the first.

    Attributes:
        microseconds: The times, at least one, and not all zero.
    """

    microseconds: tuple[int, ...]


class FixedSchedule(msgspec.Struct, frozen=True, tag=True):
    """Begin each request at its own time, once.

    Attributes:
        milliseconds: The times from the start, not falling. Request `i` takes input set `i`,
            again from the first if there are fewer.
    """

    milliseconds: tuple[float, ...]


class PeriodicConcurrency(msgspec.Struct, frozen=True, tag=True):
    """Begin with some requests, and `step` more after each `period` responses, up to `end` in all.

    Each request is sent once. The level is done when all of them have ended.

    Attributes:
        start: The requests at the beginning.
        end: The requests in all.
        step: How many begin together.
        period: How many responses of the requests that began last let the next ones begin.
    """

    start: int
    end: int
    step: int = 1
    period: int = 10


Level = Concurrency | RequestRate | Intervals | FixedSchedule | PeriodicConcurrency
