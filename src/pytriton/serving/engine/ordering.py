# SPDX-License-Identifier: Apache-2.0
"""Releases results in the order in which their requests arrived, not in which they finished."""

from __future__ import annotations

from typing import Generic, TypeVar

Result = TypeVar("Result")


class OrderedRelease(Generic[Result]):
    """Keeps a finished result until all earlier ones are released.

    Every request takes a ticket when it arrives and returns it exactly once: with `complete`, or
    with `skip` if it has no result.
    """

    __slots__ = ("_finished", "_issued", "_released")

    def __init__(self) -> None:
        self._issued = 0
        self._released = 0
        self._finished: dict[int, list[Result]] = {}  # by ticket, all later than `_released`

    def take_ticket(self) -> int:
        """Returns the ticket of the next request."""
        ticket = self._issued
        self._issued = ticket + 1
        return ticket

    def complete(self, ticket: int, result: Result) -> list[Result]:
        """Give back a ticket with its result; returns the results to release now, in order."""
        return self._finish(ticket, [result])

    def skip(self, ticket: int) -> list[Result]:
        """Give back a ticket without a result; returns the results to release now, in order."""
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
        """Returns the number of finished results that wait for an earlier one."""
        return len(self._finished)

    def __repr__(self) -> str:
        running = self._issued - self._released - len(self._finished)
        return f"<OrderedRelease {running} running, {len(self._finished)} finished and waiting>"
