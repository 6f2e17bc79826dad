# SPDX-License-Identifier: Apache-2.0
"""Whether a cluster has room, the words for what it lacks, and the nodes that are chosen."""

from __future__ import annotations

import pytest

from pytriton.runtime.cluster.room import Spreading, describe_wait, has_room, wanted_resources
from pytriton.runtime.executor.remote.starter import NodeStatus
from pytriton.runtime.executor.worker import Placement

CPU = NodeStatus("1", "10.0.0.1", {"CPU": 4.0}, {"CPU": 1.0})
GPU = NodeStatus("2", "10.0.0.2", {"CPU": 4.0, "GPU": 2.0}, {"CPU": 2.0, "GPU": 0.5})


def test_resources_of_a_placement_have_names_of_ray_and_no_zeros():
    placement = Placement(num_cpus=0, num_gpus=0.5, resources={"fast_disk": 1, "none": 0})

    assert wanted_resources(placement) == {"GPU": 0.5, "fast_disk": 1}


def test_room_is_counted_for_all_processes_together():
    process = {"CPU": 1.0}

    assert has_room([process] * 3, [CPU, GPU])
    assert not has_room([process] * 4, [CPU, GPU])
    assert has_room([{"GPU": 0.1}] * 5, [CPU, GPU])  # sums of fractions are not exact
    assert not has_room([{"GPU": 1.0}], [CPU, GPU])


def test_all_resources_of_a_process_have_to_be_on_one_node():
    assert not has_room([{"CPU": 2.0, "fast_disk": 1.0}], [CPU, GPU])
    assert not has_room([{"CPU": 3.0}], [CPU, GPU])


def test_node_whose_free_resources_are_not_known_counts_as_free():
    assert has_room([{"CPU": 4.0}], [NodeStatus("1", "10.0.0.1", {"CPU": 4.0})])


def test_words_tell_what_each_node_has_left():
    text = describe_wait({"CPU": 1.0, "GPU": 1.0}, 1, [CPU, GPU])

    assert text == (
        "it needs 1 CPU, 1 GPU, and no node has that free: "
        "10.0.0.2 has 2 of 4 CPU, 0.5 of 2 GPU free"
    )


def test_words_tell_that_others_take_what_is_free():
    text = describe_wait({"CPU": 1.0}, 1, [CPU])

    assert text == (
        "it needs 1 CPU, and others that are being started take what is free: "
        "10.0.0.1 has 1 of 4 CPU free"
    )


def test_words_tell_what_a_node_has_in_all_if_it_is_not_known_what_is_free():
    text = describe_wait({"CPU": 1.0}, 1, [NodeStatus("1", "10.0.0.1", {"CPU": 4.0})])

    assert text == "it needs 1 CPU, and no node has that free: 10.0.0.1 has 4 CPU in all"


def test_words_tell_if_no_node_could_ever_do():
    text = describe_wait({"GPU": 4.0, "tpu": 1.0}, 1, [CPU, GPU])

    assert text == (
        "it needs 4 GPU, 1 tpu, and no node has that, used or not: the most is 2 GPU, 0 tpu"
    )


def test_words_name_few_of_many_nodes_and_the_size_of_a_group():
    nodes = [NodeStatus(str(i), f"n{i}", {"CPU": 4.0}, {"CPU": 0.5}) for i in range(9)]

    text = describe_wait({"CPU": 1.0}, 8, nodes)

    assert text.startswith(
        "it needs 8 times 1 CPU, and there is no room for all of them: n0 has 0.5"
    )
    assert text.endswith("; and 5 more")
    assert "no nodes" in describe_wait({"CPU": 1.0}, 1, [])


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
