# SPDX-License-Identifier: Apache-2.0
"""Limits how many requests a step has at a time; others wait in the order of their arrival."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.serving.engine.ensemble.graph import EnsembleGraph

T = TypeVar("T")


class StepGate(Generic[T]):
    """The requests of one step, over all requests of its ensemble.

    Args:
        limit: How many may run at a time.
        start: Starts one that has waited; it may end before this returns.
    """

    __slots__ = ("_is_starting", "_limit", "_running", "_start", "_waiting")

    def __init__(self, limit: int, start: Callable[[T], None]) -> None:
        self._limit = limit
        self._start = start
        self._running: set[T] = set()
        self._waiting: dict[T, None] = {}  # in order
        self._is_starting = False

    def enter(self, each: T) -> bool:
        """Returns whether a request may run now; otherwise it waits."""
        if len(self._running) < self._limit:
            self._running.add(each)
            return True
        self._waiting[each] = None
        return False

    def leave(self, each: T) -> None:
        """Note that a request has ended; the next one starts."""
        self._running.discard(each)
        if self._is_starting:  # the loop below goes on: a call for each would nest too deep
            return
        self._is_starting = True
        try:
            while self._waiting and len(self._running) < self._limit:
                following = next(iter(self._waiting))
                del self._waiting[following]
                self._running.add(following)
                self._start(following)
        finally:
            self._is_starting = False

    def give_up(self, each: T) -> bool:
        """Remove a request that waits; returns whether it did."""
        if each not in self._waiting:
            return False
        del self._waiting[each]
        return True

    def __repr__(self) -> str:
        return f"<StepGate {len(self._running)} of {self._limit} run, {len(self._waiting)} wait>"


def make_gates(graph: EnsembleGraph, start: Callable[[T], None]) -> dict[int, StepGate[T]]:
    """Returns the gates of the steps whose number of requests a decoupled step decides."""
    if not graph.max_inflight:
        return {}
    return {
        step.index: StepGate(graph.max_inflight, start)
        for step in graph.steps
        if graph.depth(step.inputs[0].tensor) > 0
    }
