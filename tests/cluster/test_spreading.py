# SPDX-License-Identifier: Apache-2.0
"""The node that the next instance of a model should be on."""

from __future__ import annotations

import pytest

from pytriton.runtime.cluster.room import Spreading
from pytriton.runtime.executor.remote.starter import NodeStatus

ONE = {"CPU": 1.0}


def nodes(**free):
    return [
        NodeStatus(name, name, {"CPU": 4.0}, {"CPU": float(cpus)}) for name, cpus in free.items()
    ]


@pytest.fixture
def spreading():
    return Spreading()


def test_instances_of_a_model_are_on_different_nodes(spreading):
    chosen = []
    for number in range(4):
        chosen.append(spreading.choose("m", ONE, nodes(a=4, b=4, c=4), 0.0))
        spreading.add(f"m-{number}", "m", chosen[-1])

    assert sorted(chosen[:3]) == ["a", "b", "c"]


def test_instances_of_other_models_count_less(spreading):
    spreading.add("m-0", "m", "a")
    spreading.add("n-0", "n", "b")
    spreading.add("n-1", "n", "b")

    assert spreading.choose("m", ONE, nodes(a=4, b=4), 0.0) == "b"
    assert spreading.choose("k", ONE, nodes(a=4, b=4), 0.0) == "a"


def test_node_without_room_is_not_chosen(spreading):
    spreading.add("m-0", "m", "a")

    assert spreading.choose("m", ONE, nodes(a=4, b=0.5), 0.0) == "a"
    assert spreading.choose("m", {"GPU": 1.0}, nodes(a=4), 0.0) == ""


def test_what_is_in_all_counts_where_nobody_knows_what_is_free(spreading):
    assert spreading.choose("m", ONE, [NodeStatus("a", "a", {"CPU": 1.0}, {})], 0.0) == "a"


def test_instance_that_has_ended_leaves_its_node(spreading):
    spreading.add("m-0", "m", "a")
    spreading.add("m-1", "m", "b")
    spreading.remove("m-0", 0.0, is_lost=False)
    spreading.remove("m-0", 0.0, is_lost=True)  # a second time, which says nothing more

    assert spreading.choose("m", ONE, nodes(b=4, a=4), 0.0) == "a"


def test_node_that_has_lost_an_instance_is_the_last_choice_for_a_while(spreading):
    spreading.add("m-0", "m", "a")
    spreading.add("m-1", "m", "b")
    spreading.remove("m-0", 100.0, is_lost=True)

    assert spreading.choose("m", ONE, nodes(a=4, b=4), 110.0) == "b"
    assert spreading.choose("m", ONE, nodes(a=4), 110.0) == "a"
    assert spreading.choose("m", ONE, nodes(a=4, b=4), 131.0) == "a"
