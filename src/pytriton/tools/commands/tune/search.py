# SPDX-License-Identifier: Apache-2.0
"""Decides which configuration is tried next, and which one is recommended. Pure."""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Iterator, Sequence

_DELAYS_US = (0, 100, 250, 500, 1000, 2000, 5000)
_INSTANCES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_STRIDES = (2, 1)  # coarse, then fine


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """A configuration; the simplest comes first in order.

    Attributes:
        batch: The largest batch.
        delay_us: How long a batch waits to become larger.
    """

    instances: int
    batch: int
    delay_us: int

    def __str__(self) -> str:
        several = "s" if self.instances > 1 else ""
        return f"batch {self.batch}, delay {self.delay_us} µs, {self.instances} instance{several}"


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """A candidate that was measured.

    Attributes:
        noise: How far its windows differ from their mean, as a share.
        mean_batch: How many requests the server ran at once; 0 if it did not say.
        problem: Why it could not be measured; empty if it was.
    """

    candidate: Candidate
    throughput: float = 0.0
    p50_us: float = 0.0
    p99_us: float = 0.0
    noise: float = 0.0
    mean_batch: float = 0.0
    problem: str = ""


class Objective(enum.Enum):
    """What is best."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"


@dataclasses.dataclass(frozen=True, slots=True)
class Goal:
    """What is best, and what is allowed.

    Attributes:
        limit_us: The highest p99 latency; 0: any.
    """

    objective: Objective = Objective.THROUGHPUT
    limit_us: float = 0.0

    def is_allowed(self, trial: Trial) -> bool:
        return not trial.problem and not 0 < self.limit_us < trial.p99_us

    def score(self, trial: Trial) -> float:
        """What the goal wants to be large; only trials that are allowed can be compared by it."""
        if self.objective is Objective.THROUGHPUT:
            return trial.throughput
        return 1e6 / max(trial.p99_us, 1.0)

    def rank(self, trial: Trial) -> tuple[int, float]:
        """An order of all trials: measured before broken, allowed before not, then the score."""
        if trial.problem:
            return 0, 0.0
        if not self.is_allowed(trial):
            return 1, -trial.p99_us  # the nearest to the limit
        return 2, self.score(trial)


@dataclasses.dataclass(frozen=True, slots=True)
class Space:
    """The values that are tried, each in rising order."""

    instances: tuple[int, ...]
    batches: tuple[int, ...]
    delays_us: tuple[int, ...]

    @property
    def axes(self) -> tuple[tuple[int, ...], ...]:
        return self.instances, self.batches, self.delays_us

    def size(self) -> int:
        return len(self.instances) * len(self.batches) * len(self.delays_us)


def space_of(present: Candidate, max_batch: int, max_instances: int, *, has_batches: bool) -> Space:
    """The values around a configuration.

    Args:
        present: The configuration now; its values are among them.
        max_batch: The largest batch to try.
        max_instances: The most instances to try.
        has_batches: Whether requests of the model can run together.
    """
    instances = {each for each in _INSTANCES if each <= max_instances} | {present.instances}
    if not has_batches:
        return Space(tuple(sorted(instances)), (present.batch,), (present.delay_us,))
    batches = {2**power for power in range(12) if 2**power <= max_batch} | {present.batch}
    delays = {*_DELAYS_US, present.delay_us}
    return Space(tuple(sorted(instances)), tuple(sorted(batches)), tuple(sorted(delays)))


def next_candidate(space: Space, trials: Sequence[Trial], goal: Goal) -> Candidate | None:
    """What to try next: a few far apart first, then the neighbours of the best one so far.

    Args:
        space: The values that are tried.
        trials: What was measured; the first one is the present configuration.
        goal: What is best.

    Returns:
        A candidate that was not tried; None if no neighbour of the best one is left.
    """
    tried = {trial.candidate for trial in trials}
    for candidate in _far_apart(space):
        if candidate not in tried:
            return candidate
    best = max(trials, key=goal.rank).candidate
    for stride in _STRIDES:
        for candidate in _neighbours(space, best, stride):
            if candidate not in tried:
                return candidate
    return None


def _far_apart(space: Space) -> Iterator[Candidate]:
    """The corners of the space, and the middle of the batches."""
    batches = dict.fromkeys(
        (space.batches[0], space.batches[len(space.batches) // 2], space.batches[-1])
    )
    instances = dict.fromkeys((space.instances[0], space.instances[-1]))
    for count, batch in itertools.product(instances, batches):
        yield Candidate(count, batch, space.delays_us[0])


def _neighbours(space: Space, best: Candidate, stride: int) -> Iterator[Candidate]:
    """The candidates some steps away along each axis."""
    at = (
        space.instances.index(best.instances),
        space.batches.index(best.batch),
        space.delays_us.index(best.delay_us),
    )
    for axis, direction in itertools.product((1, 0, 2), (1, -1)):
        place = list(at)
        place[axis] += direction * stride
        if 0 <= place[axis] < len(space.axes[axis]):
            values = [values[index] for values, index in zip(space.axes, place, strict=True)]
            # A batch of one waits for nothing, so that its delay does not matter.
            if not (axis == 2 and best.batch == 1):
                yield Candidate(*values)


def recommend(trials: Sequence[Trial], goal: Goal) -> Trial | None:
    """The best trial, or the simplest of those that are as good as it within the noise.

    Returns:
        The trial; None if none is allowed.
    """
    allowed = [trial for trial in trials if goal.is_allowed(trial)]
    if not allowed:
        return None
    best = max(allowed, key=goal.score)
    margin = min(max(best.noise, 0.02), 0.1)
    as_good = [each for each in allowed if goal.score(each) >= goal.score(best) * (1 - margin)]
    return min(as_good, key=lambda trial: trial.candidate)


@dataclasses.dataclass(frozen=True, slots=True)
class Gain:
    """The recommended configuration beside the present one, measured in turns.

    Attributes:
        throughput: New by old.
        latency: p99, old by new.
        noise: How far the measurements of one configuration differ, as a share.
        new_throughput: What the recommended one reached.
        new_p99_us: Its latency.
    """

    throughput: float
    latency: float
    noise: float
    objective: Objective
    new_throughput: float = 0.0
    new_p99_us: float = 0.0

    @property
    def ratio(self) -> float:
        return self.throughput if self.objective is Objective.THROUGHPUT else self.latency

    @property
    def is_noise(self) -> bool:
        """Whether the difference could be chance."""
        return self.ratio - 1 <= self.noise


def gain_of(present: Sequence[Trial], new: Sequence[Trial], goal: Goal) -> Gain:
    """Compare measurements that were taken in turns."""

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    def spread(trials: Sequence[Trial]) -> float:
        scores = [goal.score(trial) for trial in trials]
        return (max(scores) - min(scores)) / 2 / max(mean(scores), 1e-9)

    old_rate = mean([trial.throughput for trial in present])
    new_rate = mean([trial.throughput for trial in new])
    old_p99 = mean([trial.p99_us for trial in present])
    new_p99 = mean([trial.p99_us for trial in new])
    return Gain(
        throughput=new_rate / max(old_rate, 1e-9),
        latency=old_p99 / max(new_p99, 1e-9),
        noise=max(spread(present), spread(new), 0.02),
        objective=goal.objective,
        new_throughput=new_rate,
        new_p99_us=new_p99,
    )
