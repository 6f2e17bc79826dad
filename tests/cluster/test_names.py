# SPDX-License-Identifier: Apache-2.0
"""Names of actors: which of them belong to a start, and which to nobody."""

from __future__ import annotations

from pytriton.runtime.cluster.cluster import (
    actor_name,
    group_name,
    known_actors,
    read_actor_name,
    unknown_actors,
    unknown_groups,
)

ADD = "AddSub_0_3-0a1b2c3d"
BIG = "space/Big_0_0-00000001"


def test_first_actor_has_the_name_of_its_start():
    assert actor_name(ADD, 0) == ADD


def test_names_of_ranks_can_be_read_again():
    names = [actor_name(start, rank) for start in (ADD, BIG) for rank in (0, 1, 12)]

    assert [read_actor_name(name) for name in names] == [
        (start, rank) for start in (ADD, BIG) for rank in (0, 1, 12)
    ]


def test_actors_of_known_starts_are_found_by_rank():
    names = [actor_name(BIG, rank) for rank in (10, 0, 2, 1)] + ["Other_0_0-00000002"]

    found = known_actors(names, [ADD, BIG])

    assert found == {ADD: [], BIG: [actor_name(BIG, rank) for rank in (0, 1, 2, 10)]}


def test_actors_that_nobody_knows_are_found():
    names = [ADD, actor_name(BIG, 1), "Other_0_0-00000002", "Other_0_0-00000002/1"]

    assert unknown_actors(names, {ADD}) == names[1:]
    assert unknown_actors(names, {ADD, BIG}) == names[2:]


def test_groups_that_nobody_knows_are_found():
    names = [group_name("pytriton-1", ADD), group_name("pytriton-1", BIG)]

    assert unknown_groups(names, "pytriton-1", [BIG]) == [names[0]]
