# SPDX-License-Identifier: Apache-2.0
"""Which configuration is tried next, which one is recommended, and how each is written. Pure."""

from __future__ import annotations

import copy
import dataclasses
import enum
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_DELAYS_US = (0, 100, 250, 500, 1000, 2000, 5000)
_INSTANCES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_STRIDES = (2, 1)  # coarse, then fine

_BATCHER = "dynamic_batching"


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
    """The values around a configuration, its own among them."""
    instances = {each for each in _INSTANCES if each <= max_instances} | {present.instances}
    if not has_batches:
        return Space(tuple(sorted(instances)), (present.batch,), (present.delay_us,))
    batches = {2**power for power in range(12) if 2**power <= max_batch} | {present.batch}
    delays = {*_DELAYS_US, present.delay_us}
    return Space(tuple(sorted(instances)), tuple(sorted(batches)), tuple(sorted(delays)))


def next_candidate(space: Space, trials: Sequence[Trial], goal: Goal) -> Candidate | None:
    """What to try next: a few far apart first, then the neighbours of the best one so far.

    The first trial is the present configuration. None if no neighbour of the best one is left.
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


def present_candidate(config: Mapping[str, Any]) -> Candidate:
    """What a configuration says now."""
    groups = config.get("instance_group") or []
    count = sum(int(group.get("count", 1)) or 1 for group in groups) or 1
    batch = int(config.get("max_batch_size", 0))
    batcher = config.get(_BATCHER)
    if batcher is None:
        batch = min(batch, 1)  # without a batcher, requests run alone
    delay = int((batcher or {}).get("max_queue_delay_microseconds", 0))
    return Candidate(count, batch, delay)


def can_batch(config: Mapping[str, Any]) -> bool:
    """Whether requests of a model may run together, in any configuration."""
    return (
        int(config.get("max_batch_size", 0)) > 0
        and config.get("sequence_batching") is None
        and config.get("ensemble_scheduling") is None
    )


def changed_config(config: Mapping[str, Any], candidate: Candidate) -> str:
    """The configuration with a candidate's values, as JSON for the repository API."""
    changed = copy.deepcopy(dict(config))
    if can_batch(config):
        changed["max_batch_size"] = max(candidate.batch, _least_batch(config, candidate))
        if candidate.batch > 1:
            batcher = dict(changed.get(_BATCHER) or {})
            batcher["max_queue_delay_microseconds"] = candidate.delay_us
            batcher["preferred_batch_size"] = [
                size
                for size in batcher.get("preferred_batch_size") or []
                if int(size) <= candidate.batch
            ]
            changed[_BATCHER] = batcher
        else:
            changed.pop(_BATCHER, None)
    groups = changed.get("instance_group") or [{}]
    first = dict(groups[0])
    first["count"] = candidate.instances
    changed["instance_group"] = [first]
    return json.dumps(changed)


def _least_batch(config: Mapping[str, Any], candidate: Candidate) -> int:
    """Without a batcher, a client may still send batches of the size that it could before."""
    return int(config.get("max_batch_size", 0)) if candidate.batch == 1 else 1


def pbtxt_text(config: Mapping[str, Any], candidate: Candidate) -> str:
    """The lines of config.pbtxt that have to change."""
    lines = []
    if can_batch(config):
        lines.append(f"max_batch_size: {max(candidate.batch, _least_batch(config, candidate))}")
        if candidate.batch > 1:
            delay = candidate.delay_us
            inside = f" max_queue_delay_microseconds: {delay} " if delay else " "
            lines.append(f"dynamic_batching {{{inside}}}")
        else:
            lines.append("# no dynamic_batching: requests run alone")
    kind = ((config.get("instance_group") or [{}])[0]).get("kind") or "KIND_CPU"
    lines.append(f"instance_group [ {{ kind: {kind} count: {candidate.instances} }} ]")
    return "\n".join(lines)


def python_text(config: Mapping[str, Any], candidate: Candidate) -> str:
    """The same for a bound function."""
    several = f"[infer_func] * {candidate.instances}" if candidate.instances > 1 else "infer_func"
    if not can_batch(config):
        return f"triton.bind(..., infer_func={several}, config=ModelConfig(batching=False))"
    if candidate.batch == 1:
        settings = "max_batch_size=1"
    else:
        delay = f"max_queue_delay_microseconds={candidate.delay_us}"
        settings = f"max_batch_size={candidate.batch}, batcher=DynamicBatcher({delay})"
    return f"triton.bind(..., infer_func={several}, config=ModelConfig({settings}))"


def decorator_text(candidate: Candidate) -> str:
    """The same as the decorator of a function."""
    settings = [f"instances={candidate.instances}"]
    if candidate.batch:
        settings = [f"max_batch_size={candidate.batch}", *settings]
    if candidate.batch > 1 and candidate.delay_us:
        settings.insert(1, f"batch_delay_us={candidate.delay_us}")
    return f"@model({', '.join(settings)})"
