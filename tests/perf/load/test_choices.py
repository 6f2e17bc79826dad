# SPDX-License-Identifier: Apache-2.0
"""Which request is next."""

from __future__ import annotations

import itertools

import pytest

from pytriton.tools.perf.load.lane import Choices
from pytriton.tools.perf.load.plan import Sequences


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
