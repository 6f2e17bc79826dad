# SPDX-License-Identifier: Apache-2.0
"""Limits how many requests a step has at a time; others wait in the order of their arrival."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class StepGate(Generic[T]):
    """The requests of one step, over all requests of its ensemble."""

    __slots__ = ("_limit", "_running", "_waiting")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running: set[T] = set()
        self._waiting: deque[T] = deque()

    def enter(self, each: T) -> bool:
        """Returns whether a request may run now; otherwise it waits."""
        if len(self._running) < self._limit:
            self._running.add(each)
            return True
        self._waiting.append(each)
        return False

    def leave(self, each: T) -> T | None:
        """Note that a request has ended; returns the one that may run in its place."""
        if each not in self._running:
            return None
        self._running.remove(each)
        if not self._waiting:
            return None
        following = self._waiting.popleft()
        self._running.add(following)
        return following

    def give_up(self, each: T) -> bool:
        """Remove a request that waits; returns whether it did."""
        if each not in self._waiting:
            return False
        self._waiting.remove(each)
        return True

    def __repr__(self) -> str:
        return f"<StepGate {len(self._running)} of {self._limit} run, {len(self._waiting)} wait>"
