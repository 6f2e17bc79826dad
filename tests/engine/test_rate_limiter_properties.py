# SPDX-License-Identifier: Apache-2.0
"""Random arrivals, ends and removals: no pool is overdrawn, nothing leaks, and turns are fair."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from pytriton.serving.engine.rate_limiter import (
    Contender,
    InstanceLimits,
    ResourceLimiter,
    ResourceNeed,
)

NAMES = ("R", "S", "T")

needs = st.builds(
    lambda counts, priority, device: InstanceLimits(
        resources=tuple(ResourceNeed(name, count, name == "R") for name, count in counts.items()),
        priority=priority,
        device_id=device,
    ),
    st.dictionaries(st.sampled_from(NAMES), st.integers(0, 3), max_size=3),
    st.integers(0, 4),
    st.integers(0, 1),
)


class World:
    """Instances that wait and run, and a record of who overtook whom."""

    def __init__(self, limits: list[InstanceLimits]) -> None:
        self.limiter = ResourceLimiter()
        self.contenders = [
            self.limiter.add(number // 2, each) for number, each in enumerate(limits)
        ]
        self.waiting: dict[Contender, dict[Contender, int]] = {}  # with the starts of others since
        self.running: list[Contender] = []

    def wait(self, contender: Contender) -> None:
        self.limiter.wait(contender)
        self.waiting.setdefault(contender, {})

    def start_all(self) -> None:
        while (contender := self.limiter.next()) is not None:
            self.limiter.start(contender)
            del self.waiting[contender]
            self.running.append(contender)
            for overtakers in self.waiting.values():
                overtakers[contender] = overtakers.get(contender, 0) + 1
            self.check_pools()
        self.limiter.check_integrity()
        self.check_overtaking()
        self.check_nobody_waits_in_vain()

    def end(self, contender: Contender) -> None:
        self.running.remove(contender)
        self.limiter.end(contender)

    def remove(self, contender: Contender) -> None:
        self.contenders.remove(contender)
        self.waiting.pop(contender, None)
        self.running = [each for each in self.running if each is not contender]
        self.limiter.remove(contender)

    def used(self) -> dict:
        used: dict = {}
        for pool, count in itertools.chain(*(each.needs.items() for each in self.running)):
            used[pool] = used.get(pool, 0) + count
        return used

    def check_pools(self) -> None:
        used = self.used()
        for pool, (counted, capacity) in self.limiter.pools.items():
            assert counted == used.get(pool, 0)
            assert counted <= capacity

    def check_overtaking(self) -> None:
        """An instance that waits is passed by each competitor only as often as priorities say."""
        for contender, overtakers in self.waiting.items():
            for other, count in overtakers.items():
                if contender.needs.keys() & other.needs.keys():
                    assert count <= 2 + contender.priority // other.priority

    def check_nobody_waits_in_vain(self) -> None:
        used = self.used()
        pools = self.limiter.pools
        wanted: set = set()
        for place in sorted(each.waiting for each in self.waiting):
            contender = place.contender
            fits = all(
                used.get(pool, 0) + count <= pools[pool][1]
                for pool, count in contender.needs.items()
            )
            assert not fits or wanted & contender.needs.keys()
            wanted |= contender.needs.keys()


@settings(max_examples=100)
@given(st.lists(needs, min_size=1, max_size=6), st.data())
def test_limiter_overdraws_no_pool_and_starves_nobody(limits, data):
    world = World(limits)
    for _ in range(data.draw(st.integers(1, 40), label="steps")):
        what = data.draw(st.integers(0, 9), label="what")
        if what < 5 and world.contenders:
            world.wait(data.draw(st.sampled_from(world.contenders), label="waits"))
        elif what < 9 and world.running:
            world.end(data.draw(st.sampled_from(world.running), label="ends"))
        elif what == 9 and len(world.contenders) > 1 and not world.running:
            world.remove(data.draw(st.sampled_from(world.contenders), label="removed"))
        world.start_all()
    while world.running:
        world.end(world.running[0])
        world.start_all()

    assert not world.waiting
    assert all(used == 0 for used, _ in world.limiter.pools.values())


@settings(max_examples=100)
@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=5),
    st.integers(1, 200),
    st.integers(0, 30),
)
def test_turns_are_shared_by_priority(priorities, turns, head_start):
    """Between any two that always wait, turns times priority differ by at most one turn each."""
    need = (ResourceNeed("R", 1, is_global=True),)
    limiter = ResourceLimiter()
    contenders = [
        limiter.add(number, InstanceLimits(resources=need, priority=priority))
        for number, priority in enumerate(priorities)
    ]
    counts = dict.fromkeys(contenders, 0)
    for turn in range(head_start + turns):
        if turn == head_start:  # until now the first one had all turns
            counts = dict.fromkeys(contenders, 0)
        for each in contenders if turn >= head_start else contenders[:1]:
            limiter.wait(each)
        contender = limiter.next()
        assert contender is not None
        limiter.start(contender)
        counts[contender] += 1
        limiter.end(contender)

    for first, second in itertools.combinations(contenders, 2):
        difference = counts[first] * first.priority - counts[second] * second.priority
        assert abs(difference) <= first.priority + second.priority
