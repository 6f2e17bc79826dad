# SPDX-License-Identifier: Apache-2.0
"""Whether a cluster has room, and the words for what it lacks."""

from __future__ import annotations

from pytriton.runtime.cluster.room import describe_wait, has_room, wanted_resources
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
