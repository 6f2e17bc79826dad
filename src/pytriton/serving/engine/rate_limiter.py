# SPDX-License-Identifier: Apache-2.0
"""The rate limiter: decides which instances may start a batch when they share resources.

Resources are names with counts: "this instance needs two of R while it runs". `ResourceLimiter`
only decides: it has no clock and does no I/O, and it knows neither models nor processes. A server
has one `InstanceTurns` if its rate limiter is on, and each model a `ModelTurns`; without them, an
instance starts a batch as soon as it is free.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from pytriton.base.errors import InvalidArgumentError

if TYPE_CHECKING:
    import asyncio

    from pytriton.runtime.executor.inference import Instance

# A resource's name and its device; None for a resource that all devices share.
Pool = tuple[str, int | None]


class RateLimitResource(msgspec.Struct, frozen=True, kw_only=True):
    """The amount of a resource of the rate limiter."""

    name: str
    count: int
    device: int | None = None  # None: on every device


class ResourceNeed(msgspec.Struct, frozen=True):
    """How much of a resource an instance needs while it executes a batch."""

    name: str
    count: int
    is_global: bool = False  # all devices share it


class InstanceLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an instance for the rate limiter."""

    resources: tuple[ResourceNeed, ...] = ()
    priority: int = 1  # an instance with 2 gets half the turns of one with 1; 0 counts as 1
    device_id: int = 0  # also for instances that are not on a GPU

    @classmethod
    def read(cls, message: Any, device_id: int = 0) -> InstanceLimits:
        """Read the ModelRateLimiter message of an instance group."""
        needs = (
            ResourceNeed(each.name, each.count, getattr(each, "global"))
            for each in message.resources
        )
        return cls(resources=tuple(needs), priority=message.priority, device_id=device_id)

    def needs(self) -> dict[Pool, int]:
        """Returns the count that is needed of each pool."""
        needs: dict[Pool, int] = {}
        for need in self.resources:
            pool = (need.name, None if need.is_global else self.device_id)
            needs[pool] = max(need.count, needs.get(pool, 0))
        return {pool: count for pool, count in needs.items() if count}


class Contender:
    """An instance as the limiter knows it; `ResourceLimiter.add` makes it.

    It takes turns by its start tag, the smallest first. The tag grows by the priority with each
    batch, so with all instances waiting it is the number of executions times the priority. The
    instance that has this place now may die and be replaced.
    """

    __slots__ = (
        "end_tag", "group_key", "held", "instance", "limits", "needs", "priority", "start",
        "waiting",
    )  # fmt: skip

    def __init__(self, group_key: Hashable, limits: InstanceLimits) -> None:
        self.group_key = group_key
        self.limits = limits
        self.needs = limits.needs()
        self.priority = max(1, limits.priority)
        self.end_tag = 0  # the start tag of its last batch, plus the priority
        self.held = 0  # the number of batches for which it holds its resources
        self.waiting: _QueuePlace | None = None
        self.instance: Instance | None = None
        self.start: Callable[[], bool] | None = None  # starts a batch; False if none is ready

    def __repr__(self) -> str:
        return f"<Contender needs={self.needs} held={self.held} waiting={self.waiting}>"


class _Group:
    """Contenders that compete with each other, directly or through others."""

    __slots__ = ("clock",)

    def __init__(self, clock: int = 0) -> None:
        self.clock = clock  # the largest start tag of a batch that was started


class _QueuePlace(msgspec.Struct, order=True, frozen=True):
    """A place among those that wait."""

    start_tag: int
    number: int  # of two with the same tag, the one that waits for longer is first
    contender: Contender


class ResourceLimiter:
    """The resources of a server, and the instances that wait for them.

    An instance that waits reserves its resources against all behind it, so none starves.
    Instances that need none of these resources pass.

    A contender that did not wait for some time gets no turns for that: its start tag is at least
    that of the last started batch of its group.

    Attributes:
        waiting: The places of those that wait for their turns, sorted.

    Args:
        resources: Explicit counts. If there are any, every resource must have one. Otherwise each
            has as many as the instance with the largest need of it.
    """

    def __init__(self, resources: Iterable[RateLimitResource] = ()) -> None:
        self._explicit = {(each.name, each.device): each.count for each in resources}
        self._contenders: dict[Contender, None] = {}
        self._groups: dict[Hashable, _Group] = {}  # by pool and by the `group_key` of contenders
        self._capacity: dict[Pool, int] = {}
        self._used: dict[Pool, int] = {}
        self.waiting: list[_QueuePlace] = []  # sorted
        self._numbers = itertools.count()

    # Instances come and go

    def add(self, group_key: Hashable, limits: InstanceLimits) -> Contender:
        """Add an instance.

        `group_key` is the same for all instances that execute the requests of one queue. Raises
        InvalidArgumentError if the resources do not suffice, or one is global for one instance
        only.
        """
        contender = Contender(group_key, limits)
        self._check(contender)
        self._contenders[contender] = None
        self._join_groups(contender)
        self._set_capacity(contender.needs)
        return contender

    def remove(self, contender: Contender) -> None:
        """Remove an instance and give back what it holds."""
        self.withdraw(contender)
        while contender.held:
            self.end(contender)
        self._contenders.pop(contender, None)
        self._set_capacity(contender.needs)
        used: set[Hashable] = {key for each in self._contenders for key in _group_keys(each)}
        self._groups = {key: group for key, group in self._groups.items() if key in used}

    def _check(self, contender: Contender) -> None:
        is_global = {need.name: need.is_global for need in contender.limits.resources}
        for other in (contender, *self._contenders):
            for need in other.limits.resources:
                if is_global.get(need.name, need.is_global) != need.is_global:
                    raise InvalidArgumentError(
                        f'Resource "{need.name}" is present as both global and device-specific '
                        "resource in the model configuration."
                    )
        if not self._explicit:
            return
        for pool, count in contender.needs.items():
            limit = self._explicit_count(pool)
            if count > limit:
                raise InvalidArgumentError(
                    f'Resource count for "{pool[0]}" is limited to {limit} which will prevent '
                    "scheduling of one or more model instances, the minimum required count is "
                    f"{count}"
                )

    def _explicit_count(self, pool: Pool) -> int:
        name, device = pool
        counts = (
            count
            for (each, its_device), count in self._explicit.items()
            if each == name and (device is None or its_device in (None, device))
        )
        return max(counts, default=0)

    def _set_capacity(self, pools: Iterable[Pool]) -> None:
        """Set the counts of pools after those that need them have changed."""
        for pool in pools:
            largest = max((each.needs.get(pool, 0) for each in self._contenders), default=0)
            if not largest:
                self._capacity.pop(pool, None)
            else:
                self._capacity[pool] = self._explicit_count(pool) if self._explicit else largest

    def _join_groups(self, contender: Contender) -> None:
        keys = _group_keys(contender)
        joined = {self._groups[key] for key in keys if key in self._groups}
        merged = _Group(max((group.clock for group in joined), default=0))
        for key in [*keys, *(key for key, group in self._groups.items() if group in joined)]:
            self._groups[key] = merged

    # Instances take turns

    def wait(self, contender: Contender) -> None:
        """Let an instance wait for its turn, unless it does already."""
        if contender.waiting is None:
            clock = self._groups[contender.group_key].clock
            tag = max(contender.end_tag, clock)
            contender.waiting = _QueuePlace(tag, next(self._numbers), contender)
            bisect.insort(self.waiting, contender.waiting)

    def withdraw(self, contender: Contender) -> None:
        """Let an instance wait no more."""
        if contender.waiting is not None:
            del self.waiting[bisect.bisect_left(self.waiting, contender.waiting)]
            contender.waiting = None

    def next(self) -> Contender | None:
        """Returns the instance whose turn it is; None if no instance that waits can start."""
        claimed: set[Pool] = set()
        for place in self.waiting:
            contender = place.contender
            if claimed.isdisjoint(contender.needs) and self._has_room(contender):
                return contender
            claimed.update(contender.needs)
        return None

    def _has_room(self, contender: Contender) -> bool:
        return all(
            self._used.get(pool, 0) + count <= self._capacity[pool]
            for pool, count in contender.needs.items()
        )

    def start(self, contender: Contender) -> None:
        """Take the resources for a batch of the instance whose turn it is."""
        place = contender.waiting
        assert place is not None, "it does not wait"
        self.withdraw(contender)
        group = self._groups[contender.group_key]
        group.clock = max(group.clock, place.start_tag)
        contender.end_tag = place.start_tag + contender.priority
        contender.held += 1
        for pool, count in contender.needs.items():
            self._used[pool] = self._used.get(pool, 0) + count

    def end(self, contender: Contender) -> None:
        """Give the resources of a batch back."""
        assert contender.held, "it holds nothing"
        contender.held -= 1
        for pool, count in contender.needs.items():
            self._used[pool] -= count
            if not self._used[pool]:
                del self._used[pool]

    def blockers(
        self, contender: Contender, stuck: Mapping[Contender, int]
    ) -> Collection[Contender]:
        """Returns those of which at least one must end a stuck batch before an instance can start.

        `stuck` says how many batches of some instances do not end by themselves.
        """
        needs = dict(contender.needs)
        for place in self._places_before(contender):
            if not needs.keys().isdisjoint(place.contender.needs):
                for pool, count in place.contender.needs.items():
                    needs[pool] = max(count, needs.get(pool, 0))
        found: dict[Contender, None] = {}
        for pool, count in needs.items():
            holders = {each: number for each, number in stuck.items() if pool in each.needs}
            held = sum(each.needs[pool] * number for each, number in holders.items())
            if held + count > self._capacity[pool]:
                found |= dict.fromkeys(holders)
        return found

    def _places_before(self, contender: Contender) -> list[_QueuePlace]:
        place = contender.waiting
        if place is not None:
            return self.waiting[: bisect.bisect_left(self.waiting, place)]
        tag = max(contender.end_tag, self._groups[contender.group_key].clock)
        return [each for each in self.waiting if each.start_tag <= tag]

    def check_integrity(self) -> None:
        """Check places, resources and groups; raises AssertionError with what is broken."""
        assert self.waiting == sorted(self.waiting), "those that wait are not in order"
        places = {place.contender: place for place in self.waiting}
        assert len(places) == len(self.waiting), "an instance waits in two places"
        used: Counter[Pool] = Counter()
        for contender in self._contenders:
            assert contender.waiting is places.pop(contender, None), f"{contender} waits elsewhere"
            used.update({pool: count * contender.held for pool, count in contender.needs.items()})
            groups = {id(self._groups[key]) for key in _group_keys(contender)}
            assert len(groups) == 1, f"{contender} is in {len(groups)} groups"
        assert not places, f"instances wait that have left: {list(places)}"
        assert +used == self._used, f"in use are {dict(+used)}, not {self._used}"
        if self._explicit:
            for pool, count in self._used.items():
                assert count <= self._capacity[pool], f"{count} of {pool} are in use"

    @property
    def pools(self) -> dict[Pool, tuple[int, int]]:
        """How much of each pool is in use, and how much there is."""
        return {pool: (self._used.get(pool, 0), count) for pool, count in self._capacity.items()}


def _group_keys(contender: Contender) -> list[Hashable]:
    return [contender.group_key, *contender.needs]


class InstanceTurns:
    """The rate limiter of a server, and the models whose instances take turns."""

    def __init__(self, limiter: ResourceLimiter, loop: asyncio.AbstractEventLoop) -> None:
        self.limiter = limiter
        self._loop = loop
        self._contenders: dict[Instance, Contender] = {}
        self._is_running = False
        self._is_due = False

    def join(self, limits: Iterable[InstanceLimits]) -> ModelTurns:
        """Add a model, given what each of its instances needs.

        If an instance could never start, no instance is added.
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
        """Give an instance turns: `start` is called then, and returns whether a batch started."""
        contender.instance, contender.start = instance, start
        self._contenders[instance] = contender

    def disable(self, instance: Instance) -> None:
        """Give an instance no more turns."""
        contender = self._contenders.pop(instance)
        contender.instance = contender.start = None
        self.limiter.withdraw(contender)
        self.run_soon()  # those behind it may not have to wait any more

    def blockers(
        self, instance: Instance, stuck_count: Callable[[Instance], int]
    ) -> Collection[Instance]:
        """Returns those of which at least one must end a batch before an instance can start one.

        `stuck_count` returns how many batches of an instance do not end by themselves.
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
                assert contender.start is not None, f"{contender} has no start"
                if not contender.start():
                    self.limiter.withdraw(contender)  # it has nothing to do now
        finally:
            self._is_running = False

    def run_soon(self) -> None:
        """Do the same in the next iteration of the event loop, if an instance waits."""
        if not self._is_due and self.limiter.waiting:
            self._is_due = True
            self._loop.call_soon(self._on_due)

    def _on_due(self) -> None:
        self._is_due = False
        self.run()

    def check_integrity(self) -> None:
        """Check that waiting instances cannot start yet, and have a start; for tests."""
        self.limiter.check_integrity()
        for instance, contender in self._contenders.items():
            assert contender.instance is instance, f"{contender} has another instance"
        known = set(self._contenders.values())
        for place in self.limiter.waiting:
            assert place.contender in known, f"{place.contender} has no start"
        if not self._is_due and not self._is_running:
            ready = self.limiter.next()
            assert ready is None, f"{ready} waits although it could start"


class ModelTurns:
    """The turns of one model's instances."""

    def __init__(self, turns: InstanceTurns) -> None:
        self._turns = turns
        self._limiter = turns.limiter
        self._seats: list[Contender] = []
        self._taken: dict[Instance, Contender] = {}
        self._is_closed = False

    @property
    def pools(self) -> frozenset[Pool]:
        """The resources that its instances need."""
        return frozenset(pool for seat in self._seats for pool in seat.needs)

    def add_seat(self, limits: InstanceLimits) -> Contender:
        """Add an instance that will be started, and started again when it dies."""
        seat = self._limiter.add(self, limits)
        self._seats.append(seat)
        return seat

    def add(
        self, instance: Instance, limits: InstanceLimits | None, start: Callable[[Instance], bool]
    ) -> None:
        """Put an instance in a seat with its limits.

        The seat has these limits; None: all are the same. If no seat is free, another one is added.
        `start` starts a batch on the instance; it returns False if none is ready.
        """
        free = (
            seat for seat in self._seats if seat.instance is None and limits in (None, seat.limits)
        )
        seat = next(free, None) or self.add_seat(limits or InstanceLimits())
        self._taken[instance] = seat
        self._turns.enable(instance, seat, lambda: self._start(instance, seat, start))

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
            self._limiter.wait(self._taken[instance])
        self._turns.run()

    def settle(self, instance: Instance) -> None:
        """Give back the resources of batches that have ended; instances that wait start soon."""
        seat = self._taken.get(instance)
        if seat is not None:
            self._give_back(seat, len(instance.executing_batches))

    def _give_back(self, seat: Contender, executing_count: int) -> None:
        has_changed = seat.held > executing_count
        while seat.held > executing_count:
            self._limiter.end(seat)
        if has_changed:
            self._turns.run_soon()

    def remove(self, instance: Instance, *, with_seat: bool = False) -> None:
        """Give back all resources of an instance that died.

        With `with_seat`, no other instance will take its place.
        """
        seat = self._taken.pop(instance, None)
        if seat is None:
            return
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

    def _drop(self, seat: Contender) -> None:
        self._seats.remove(seat)
        self._limiter.remove(seat)
        self._turns.run_soon()
