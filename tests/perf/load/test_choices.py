# SPDX-License-Identifier: Apache-2.0
"""Which request is next, and when."""

from __future__ import annotations

import itertools

import pytest

from pytriton.tools.perf.errors import GeneratorError
from pytriton.tools.perf.load.driver import check_level, offsets_ns, share, share_of_number
from pytriton.tools.perf.load.lane import Choices
from pytriton.tools.perf.load.plan import (
    Arrivals,
    Concurrency,
    FixedSchedule,
    Intervals,
    PeriodicConcurrency,
    RequestRate,
    Sequences,
)


def test_sets_of_all_streams_take_turns():
    choices = Choices([2, 1], None)

    assert [choices.next(0).input_index for _ in range(5)] == [0, 1, 2, 0, 1]


def test_processes_share_the_sets():
    shares = []
    for worker in range(2):
        choices = Choices([4], None)
        choices.share(worker, 2, is_new=True)
        shares.append([choices.next(0).input_index for _ in range(3)])

    assert shares == [[0, 2, 0], [1, 3, 1]]


def test_schedule_begins_with_the_first_set():
    choices = Choices([3], None)
    choices.next(0)
    choices.share(0, 1, is_new=True)

    assert choices.next(0).input_index == 0


def test_sequence_has_a_start_an_end_and_one_id():
    choices = Choices([2], Sequences(length=3, length_variation=0, first_id=7))
    taken = [choices.next(0) for _ in range(4)]

    assert [each.sequence_id for each in taken] == [7, 7, 7, 8]
    assert [each.is_start for each in taken] == [True, False, False, True]
    assert [each.is_end for each in taken] == [False, False, True, False]
    assert [each.input_index for each in taken] == [0, 1, 0, 0]


def test_places_have_sequences_of_their_own_and_streams_take_turns():
    choices = Choices([1, 2], Sequences(length=None))
    taken = [choices.next(place) for place in (0, 1, 0, 1)]

    assert [each.sequence_id for each in taken] == [1, 2, 3, 2]
    assert [each.input_index for each in taken] == [0, 1, 0, 2]
    assert [each.is_end for each in taken] == [True, False, True, True]


def test_ids_stay_in_their_range():
    choices = Choices([1], Sequences(length=1, length_variation=0, first_id=5, last_id=6))

    assert [choices.next(0).sequence_id for _ in range(4)] == [5, 6, 5, 6]


def test_lengths_vary_within_their_bounds_and_depend_on_the_seed():
    def lengths(seed):
        choices = Choices([1], Sequences(length=10, length_variation=20, seed=seed))
        ends = [choices.next(0).is_end for _ in range(1000)]
        positions = [index for index, is_end in enumerate(ends) if is_end]
        return [after - before for before, after in itertools.pairwise(positions)]

    assert set(lengths(1)) == {8, 9, 10, 11, 12}
    assert lengths(1) == lengths(1)
    assert lengths(1) != lengths(2)


@pytest.mark.parametrize("is_lost", [True, False])
def test_lost_sequence_is_followed_by_another(is_lost):
    choices = Choices([1], Sequences(length=10, length_variation=0))
    choices.next(0)
    if is_lost:
        choices.end_sequence(0)

    assert choices.next(0).is_start is is_lost


MILLISECOND = 1_000_000


def first(level, count):
    return list(itertools.islice(offsets_ns(level), count))


def test_constant_rate_is_even_and_does_not_drift():
    moments = first(RequestRate(3.0), 3_001)

    assert moments[:2] == [0, 333_333_333]
    assert moments[3_000] == 1_000_000_000_000


def test_poisson_gaps_depend_on_the_seed_alone_and_have_the_mean_of_the_rate():
    level = RequestRate(100.0, Arrivals.POISSON, seed=7)
    moments = first(level, 5_000)

    assert moments == first(level, 5_000)
    assert moments != first(RequestRate(100.0, Arrivals.POISSON, seed=8), 5_000)
    assert moments == sorted(moments)
    assert moments[-1] / 4_999 == pytest.approx(10 * MILLISECOND, rel=0.05)


def test_intervals_begin_again():
    assert first(Intervals((1, 2)), 5) == [0, 1_000, 3_000, 4_000, 6_000]


def test_schedule_ends():
    assert list(offsets_ns(FixedSchedule((0, 0.5, 20)))) == [0, 500_000, 20 * MILLISECOND]


def test_processes_share_a_schedule_without_loss():
    level = RequestRate(10.0, Arrivals.POISSON)
    shares = [list(itertools.islice(share(offsets_ns(level), each, 3), 4)) for each in range(3)]

    assert sorted(itertools.chain(*shares)) == first(level, 12)


def test_processes_share_a_number_without_loss():
    assert [share_of_number(8, each, 3) for each in range(3)] == [3, 3, 2]


@pytest.mark.parametrize(
    "level, text",
    [
        (Concurrency(0), "concurrency of 1 or more, got 0"),
        (RequestRate(0.0), "rate above 0, got 0"),
        (RequestRate(float("nan")), "rate above 0, got nan"),
        (Intervals(()), "not all of them 0"),
        (Intervals((0, 0)), "not all of them 0"),
        (Intervals((5, -1)), "0 microseconds or more"),
        (FixedSchedule(()), "at least one"),
        (FixedSchedule((3, 2)), "in their order"),
        (PeriodicConcurrency(5, 2), "end not below the start"),
    ],
)
def test_impossible_level_is_refused(level, text):
    with pytest.raises(GeneratorError, match=text):
        check_level(level)
