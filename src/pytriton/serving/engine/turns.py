# SPDX-License-Identifier: Apache-2.0
"""Lets the instances of all models start batches in the order of the rate limiter.

A server has one `Turns` if its rate limiter is on, and each model a `ModelTurns`. Without them, an
instance starts a batch as soon as it is free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytriton.serving.engine.rate_limiter import Contender, InstanceLimits, Pool, RateLimiter

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection, Iterable

    from pytriton.runtime.executor.base import Instance


@dataclass(slots=True, eq=False)
class _Seat:
    """A contender, and the instance that has its place now; that may die and be replaced."""

    contender: Contender
    instance: Instance | None = None


class Turns:
    """The rate limiter of a server, and the models whose instances take turns."""

    def __init__(self, limiter: RateLimiter, loop: asyncio.AbstractEventLoop) -> None:
        self.limiter = limiter
        self._loop = loop
        self._starts: dict[Contender, Callable[[], bool]] = {}
        self._contenders: dict[Instance, Contender] = {}
        self._is_running = False
        self._is_due = False

    def join(self, limits: Iterable[InstanceLimits]) -> ModelTurns:
        """Add a model, given what each of its instances needs.

        Raises:
            InvalidArgumentError: An instance could never start; no instance was added.
        """
        model = ModelTurns(self)
        try:
            for each in limits:
                model.add_seat(each)
        except BaseException:
            model.close()
            raise
        return model

    def enable(self, instance: Instance, contender: Contender, start: Callable[[], bool]) -> None:
        """Call `start` when it is the instance's turn; it returns whether it started a batch."""
        self._contenders[instance] = contender
        self._starts[contender] = start

    def disable(self, instance: Instance) -> None:
        """Give an instance no more turns."""
        contender = self._contenders.pop(instance)
        del self._starts[contender]
        self.limiter.withdraw(contender)

    def blockers(
        self, instance: Instance, stuck_count: Callable[[Instance], int]
    ) -> Collection[Instance]:
        """Returns those of which at least one must end a batch before an instance can start one.

        Args:
            instance: The instance that is to start a batch.
            stuck_count: Returns how many batches of an instance do not end by themselves.
        """
        contender = self._contenders.get(instance)
        if contender is None or not contender.needs:
            return ()
        instances = {holder: each for each, holder in self._contenders.items() if holder.held}
        stuck = {holder: stuck_count(each) for holder, each in instances.items()}
        return [instances[holder] for holder in self.limiter.blockers(contender, stuck)]

    def run(self) -> None:
        """Start batches as long as an instance that waits can start."""
        if self._is_running:  # a batch that starts may cause requests, and these another call
            return
        self._is_running = True
        try:
            while (contender := self.limiter.next()) is not None:
                if not self._starts[contender]():
                    self.limiter.withdraw(contender)  # it has nothing to do now
        finally:
            self._is_running = False

    def run_soon(self) -> None:
        """Do the same in the next iteration of the event loop, if an instance waits."""
        if not self._is_due and self.limiter.has_waiting:
            self._is_due = True
            self._loop.call_soon(self._on_due)

    def _on_due(self) -> None:
        self._is_due = False
        self.run()

    def __repr__(self) -> str:
        return f"<Turns of {self.limiter!r}>"


class ModelTurns:
    """The turns of one model's instances."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._limiter = turns.limiter
        self._seats: list[_Seat] = []
        self._taken: dict[Instance, _Seat] = {}
        self._is_closed = False

    @property
    def pools(self) -> frozenset[Pool]:
        """The resources that its instances need."""
        return frozenset(pool for seat in self._seats for pool in seat.contender.needs)

    def add_seat(self, limits: InstanceLimits) -> _Seat:
        """Add an instance that will be started, and started again when it dies."""
        seat = _Seat(self._limiter.add(self, limits))
        self._seats.append(seat)
        return seat

    def add(
        self, instance: Instance, limits: InstanceLimits | None, start: Callable[[Instance], bool]
    ) -> None:
        """Put an instance in a seat with its limits.

        Args:
            instance: The instance.
            limits: Those of one of the seats; None: all are the same. If no seat is free, another
                one is added.
            start: Starts a batch on the instance; returns False if none is ready.
        """
        free = (
            seat
            for seat in self._seats
            if seat.instance is None and limits in (None, seat.contender.limits)
        )
        seat = next(free, None) or self.add_seat(limits or InstanceLimits())
        seat.instance = instance
        self._taken[instance] = seat
        self._turns.enable(
            instance, seat.contender, lambda: self._start(instance, seat.contender, start)
        )

    def _start(
        self, instance: Instance, contender: Contender, start: Callable[[Instance], bool]
    ) -> bool:
        if not start(instance):
            return False
        if contender.waiting is None:
            return True  # it has died meanwhile
        self._limiter.start(contender)
        self.settle(instance)  # it may not have taken the batch
        if instance.free_slots:
            self._limiter.wait(contender)
        return True

    def wait(self, free: Iterable[Instance]) -> None:
        """Let free instances of a model with requests wait for their turns, and start what can."""
        for instance in free:
            self._limiter.wait(self._taken[instance].contender)
        self._turns.run()

    def settle(self, instance: Instance) -> None:
        """Give back the resources of batches that have ended; instances that wait start soon."""
        seat = self._taken.get(instance)
        if seat is not None:
            self._give_back(seat, len(instance.executing_batches))

    def _give_back(self, seat: _Seat, executing_count: int) -> None:
        has_changed = seat.contender.held > executing_count
        while seat.contender.held > executing_count:
            self._limiter.end(seat.contender)
        if has_changed:
            self._turns.run_soon()

    def remove(self, instance: Instance, *, with_seat: bool = False) -> None:
        """Give back all resources of an instance that died.

        Args:
            instance: The instance.
            with_seat: Whether no other instance will take its place.
        """
        seat = self._taken.pop(instance, None)
        if seat is None:
            return
        seat.instance = None
        self._turns.disable(instance)
        self._give_back(seat, 0)
        if self._is_closed or with_seat:
            self._drop(seat)

    def close(self) -> None:
        """Leave: the model ends. What its last instances hold is free when they have died."""
        self._is_closed = True
        for seat in list(self._seats):
            if seat.instance is None:
                self._drop(seat)

    def _drop(self, seat: _Seat) -> None:
        self._seats.remove(seat)
        self._limiter.remove(seat.contender)
        self._turns.run_soon()

    def __repr__(self) -> str:
        return f"<ModelTurns of {len(self._taken)} instances, {len(self._seats)} seats>"
