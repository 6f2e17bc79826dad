# SPDX-License-Identifier: Apache-2.0
"""Releases results in the order in which their requests came, whatever order they finish in."""

from __future__ import annotations

from typing import Generic, TypeVar

Result = TypeVar("Result")


class OrderedRelease(Generic[Result]):
    """Keeps a finished result until all earlier ones are released.

    Every request takes a ticket when it arrives and returns it exactly once: with `complete`, or
    with `skip` where there is nothing left to release.
    """

    __slots__ = ("_finished", "_issued", "_released")

    def __init__(self) -> None:
        self._issued = 0
        self._released = 0
        self._finished: dict[int, list[Result]] = {}  # by ticket, all later than `_released`

    def take_ticket(self) -> int:
        """The next place in the order."""
        ticket = self._issued
        self._issued = ticket + 1
        return ticket

    def complete(self, ticket: int, result: Result) -> list[Result]:
        """Return a ticket with its result; gives the results to release now, in order."""
        return self._finish(ticket, [result])

    def skip(self, ticket: int) -> list[Result]:
        """Return a ticket without a result; gives the results to release now, in order."""
        return self._finish(ticket, [])

    def _finish(self, ticket: int, results: list[Result]) -> list[Result]:
        finished = self._finished
        if not self._released <= ticket < self._issued or ticket in finished:
            raise ValueError(
                f"expected a ticket from {self._released} to {self._issued - 1} that was not "
                f"returned before, got {ticket}"
            )
        if ticket != self._released:
            finished[ticket] = results
            return []
        self._released += 1
        while self._released in finished:
            results += finished.pop(self._released)
            self._released += 1
        return results

    def __len__(self) -> int:
        """The number of finished results that wait for an earlier one."""
        return len(self._finished)

    def __repr__(self) -> str:
        running = self._issued - self._released - len(self._finished)
        return f"<OrderedRelease {running} running, {len(self._finished)} finished and waiting>"
