# SPDX-License-Identifier: Apache-2.0
"""What people see of instances and nodes: the cluster's actors and the engine's models, joined."""

from __future__ import annotations

from pytriton.runtime.executor.remote.starter import ClusterStatus, NodeStatus
from pytriton.serving.server.api.cluster_view import cluster_view
from tests.server.cluster_fakes import BoundInstance, FakeInstance, actor, cluster, model


def rows(status, *models):
    view = cluster_view(status, models)
    return [(row.model.name, row.name, row.node, row.pid, row.state) for row in view.instances]


def test_actor_runs_when_its_instance_is_in_service():
    status = cluster(actor("Add_0_0", "alpha", 7), actor("Add_0_1", "beta", 8), actor("Add_0_2"))

    assert rows(status, model("Add", FakeInstance("Add_0_0", "alpha", 7))) == [
        ("Add", "Add_0_0", "alpha", 7, "running"),
        ("Add", "Add_0_1", "beta", 8, "starting"),
        ("Add", "Add_0_2", "", 0, "pending"),
    ]


def test_same_process_number_on_another_node_is_another_process():
    status = cluster(actor("Add_0_0", "beta", 7))

    assert rows(status, model("Add", FakeInstance("Add_0_1", "alpha", 7))) == [
        ("Add", "Add_0_0", "beta", 7, "starting"),
        ("Add", "Add_0_1", "alpha", 7, "running"),
    ]


def test_model_that_is_loaded_first_has_actors_and_nothing_else():
    assert rows(cluster(actor("Add_0_0"))) == [("Add", "Add_0_0", "", 0, "pending")]


def test_lost_instance_is_missing_until_its_successor_is_known():
    lost = model("Add", missing=2)

    assert rows(cluster(), lost) == [("Add", "", "", 0, "missing")] * 2
    assert rows(cluster(actor("Add_0_0")), lost) == [
        ("Add", "Add_0_0", "", 0, "pending"),
        ("Add", "", "", 0, "missing"),
    ]


def test_instances_of_this_machine_have_no_node():
    local = model("Add", FakeInstance("Add_0_0", pid=5))

    assert rows(cluster(), local, model("Bound", BoundInstance())) == [
        ("Add", "Add_0_0", "", 5, "running"),
        ("Bound", "instance 0", "", 0, "running"),
    ]


def test_instance_is_shown_though_the_cluster_tells_nothing():
    served = model("Add", FakeInstance("Add_0_0", "alpha", 7))

    assert rows(ClusterStatus(problem="gone"), served) == [
        ("Add", "Add_0_0", "alpha", 7, "running")
    ]


def test_group_is_one_instance_and_several_processes():
    group = [actor("Add_0_0", "alpha", 7), actor("Add_0_0", "beta", 8, rank=1)]
    view = cluster_view(cluster(*group), [model("Add", FakeInstance("Add_0_0", "alpha", 7))])

    assert [row.state for row in view.instances] == ["running"]
    assert [(node.name, node.actor_count) for node in view.nodes] == [("alpha", 1), ("beta", 1)]


def test_nodes_of_one_name_are_told_apart():
    nodes = (NodeStatus("aaaaaaaa", "host"), NodeStatus("bbbbbbbb", "host"))
    status = ClusterStatus(nodes=nodes)

    assert [node.name for node in cluster_view(status, []).nodes] == ["host aaaaaa", "host bbbbbb"]


def test_resource_that_is_used_up_is_free_no_more_and_unknown_ones_stay_unknown():
    total = {"CPU": 3.0, "memory": 9.0, "node:10.0.0.1": 1.0}
    nodes = (NodeStatus("a", "full", total, {"memory": 9.0}), NodeStatus("b", "silent", total))
    full, silent = cluster_view(ClusterStatus(nodes=nodes), []).nodes

    assert (full.total, full.available) == ({"CPU": 3.0}, {"CPU": 0.0})
    assert silent.available == {}


def test_resource_that_a_node_declares_is_shown_whatever_its_name():
    nodes = (NodeStatus("a", "alpha", {"memory_large": 1.0, "object_store_memory": 2.0}),)
    (node,) = cluster_view(ClusterStatus(nodes=nodes), []).nodes

    assert node.total == {"memory_large": 1.0}
