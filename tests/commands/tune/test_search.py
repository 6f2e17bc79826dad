# SPDX-License-Identifier: Apache-2.0
"""The search of `pytriton tune` on response surfaces that are made up."""

from __future__ import annotations

import random

import pytest

from pytriton.tools.commands.tune.search import (
    Candidate,
    Goal,
    Objective,
    Trial,
    gain_of,
    next_candidate,
    recommend,
    space_of,
)

PRESENT = Candidate(1, 1, 0)
SPACE = space_of(PRESENT, 64, 8, has_batches=True)


def walk(surface, space=SPACE, goal=None, present=PRESENT) -> list[Trial]:
    """All trials of a search; a surface says throughput and p99 of a candidate."""
    goal = goal or Goal()
    trials = [measured(surface, present)]
    while (candidate := next_candidate(space, trials, goal)) is not None:
        trials.append(measured(surface, candidate))
        assert len(trials) <= space.size()
    return trials


def measured(surface, candidate: Candidate) -> Trial:
    throughput, p99_us = surface(candidate)
    return Trial(candidate, throughput, p99_us / 2, p99_us, noise=0.02)


def compute_bound(candidate: Candidate) -> tuple[float, float]:
    """Batches help up to 16, 2 cores, and waiting helps a little up to 500 µs."""
    batch = min(candidate.batch, 16) - max(candidate.batch - 16, 0) * 0.1
    cores = 2 / (1 + abs(candidate.instances - 2) * 0.2)
    wait = 1 - abs(candidate.delay_us - 500) / 20_000 if candidate.batch > 1 else 1
    rate = 1000 * batch**0.7 * cores * wait
    return rate, 16e6 / rate + candidate.delay_us


def test_search_finds_the_best_configuration_with_few_trials():
    trials = walk(compute_bound)
    best = max(trials, key=lambda trial: trial.throughput).candidate

    assert best == Candidate(2, 16, 500)
    assert len(trials) < SPACE.size() / 8


def test_search_finds_more_instances_for_models_that_wait():
    trials = walk(lambda each: (100.0 * each.instances, 1000.0))

    assert max(trials, key=lambda trial: trial.throughput).candidate.instances == 8


def test_search_keeps_the_latency_limit():
    goal = Goal(limit_us=3_000)

    chosen = recommend(walk(compute_bound, goal=goal), goal)

    assert chosen is not None
    assert chosen.p99_us <= 3_000
    assert chosen.candidate.batch > 1


def test_search_for_latency_finds_the_quickest():
    goal = Goal(Objective.LATENCY)

    chosen = recommend(walk(compute_bound, goal=goal), goal)

    assert chosen is not None
    assert chosen.candidate.instances == 2
    assert chosen.candidate.batch == 16


def test_noise_does_not_make_the_search_endless():
    chance = random.Random(4)

    def noisy(candidate: Candidate) -> tuple[float, float]:
        rate, p99_us = compute_bound(candidate)
        return rate * chance.uniform(0.8, 1.2), p99_us

    for _ in range(20):
        assert len(walk(noisy)) < SPACE.size()


def test_candidates_that_cannot_be_loaded_are_not_chosen():
    def surface(candidate: Candidate) -> Trial:
        if candidate.batch > 8:
            return Trial(candidate, problem="too large")
        return measured(compute_bound, candidate)

    trials = [surface(PRESENT)]
    while (candidate := next_candidate(SPACE, trials, Goal())) is not None:
        trials.append(surface(candidate))

    chosen = recommend(trials, Goal())
    assert chosen is not None
    assert chosen.candidate.batch == 8


def test_simplest_of_equals_is_recommended():
    trials = walk(lambda _candidate: (1000.0, 1000.0), present=Candidate(4, 32, 100),
                  space=space_of(Candidate(4, 32, 100), 64, 8, has_batches=True))  # fmt: skip

    chosen = recommend(trials, Goal())

    assert chosen is not None
    assert chosen.candidate == Candidate(1, 1, 0)


def test_nothing_is_recommended_if_nothing_keeps_the_limit():
    goal = Goal(limit_us=1)

    assert recommend(walk(compute_bound, goal=goal), goal) is None


def test_model_without_batches_is_searched_by_instances_only():
    space = space_of(Candidate(1, 0, 0), 64, 4, has_batches=False)

    assert space.batches == (0,)
    assert {trial.candidate.batch for trial in walk(compute_bound_alone, space,
            present=Candidate(1, 0, 0))} == {0}  # fmt: skip


def compute_bound_alone(candidate: Candidate) -> tuple[float, float]:
    return 100.0 * min(candidate.instances, 3), 1000.0


def test_present_values_are_in_the_space():
    space = space_of(Candidate(5, 48, 700), 64, 8, has_batches=True)

    assert 5 in space.instances
    assert 48 in space.batches
    assert 700 in space.delays_us


def trial(throughput: float, p99_us: float = 1000.0) -> Trial:
    return Trial(PRESENT, throughput, p99_us / 2, p99_us)


@pytest.mark.parametrize(
    "old, new, is_noise", [((100, 101), (150, 151), False), ((100, 140), (130, 120), True)]
)
def test_gain_within_the_noise_is_no_gain(old, new, is_noise):
    gain = gain_of([trial(each) for each in old], [trial(each) for each in new], Goal())

    assert gain.is_noise == is_noise
    assert gain.throughput == pytest.approx(sum(new) / sum(old))


def test_gain_of_latency_is_old_by_new():
    goal = Goal(Objective.LATENCY)

    gain = gain_of([trial(1, 2000), trial(1, 2000)], [trial(1, 1000), trial(1, 1000)], goal)

    assert gain.ratio == 2
    assert not gain.is_noise
