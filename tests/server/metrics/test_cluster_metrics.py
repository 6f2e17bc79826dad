# SPDX-License-Identifier: Apache-2.0
"""The families of a server whose instances run on a cluster."""

from __future__ import annotations

from pytriton.runtime.executor.remote.starter import ClusterStatus
from pytriton.serving.server.metrics.cluster_families import (
    CLUSTER_NAMES,
    INSTANCES,
    cluster_families,
)
from tests.server.cluster_fakes import FakeInstance, actor, cluster, model


def text(status, *models):
    return "".join(family.text() for family in cluster_families(status, models))


def lines(status, *models):
    return [line for line in text(status, *models).splitlines() if not line.startswith("#")]


def test_server_without_a_cluster_has_none_of_them():
    assert text(None, model("Add", FakeInstance("Add_0_0"))) == ""


def test_instances_are_counted_by_node_and_state():
    served = model("Add", *(FakeInstance(f"Add_0_{n}", "alpha", n + 1) for n in range(2)))
    actors = [actor("Add_0_0", "alpha", 1), actor("Add_0_1", "alpha", 2), actor("Add_0_2")]

    shown = [line for line in lines(cluster(*actors), served) if INSTANCES in line]

    assert shown == [
        'nv_model_instance_count{model="Add",node="",state="pending",version="1"} 1',
        'nv_model_instance_count{model="Add",node="alpha",state="running",version="1"} 2',
    ]


def test_losses_and_changes_of_a_model_are_counted():
    served = model("Add", FakeInstance("Add_0_0", "alpha", 7))
    statistics = served.statistics
    statistics.lost_instances, statistics.requeued_requests = 3, 32
    statistics.scale_ups, statistics.scale_downs = 2, 1

    shown = lines(cluster(), served)

    assert 'nv_model_instance_loss_count{model="Add",version="1"} 3' in shown
    assert 'nv_model_instance_scale_up_count{model="Add",version="1"} 2' in shown
    assert 'nv_model_instance_scale_down_count{model="Add",version="1"} 1' in shown
    assert 'nv_inference_requeue_count{model="Add",version="1"} 32' in shown


def test_nodes_have_their_processes_and_resources():
    assert [line for line in lines(cluster(actor("Add_0_0", "beta", 7))) if "node" in line] == [
        'nv_model_instance_count{model="Add",node="beta",state="starting",version="1"} 1',
        "nv_cluster_node_count 2",
        'nv_cluster_node_actor_count{node="alpha"} 0',
        'nv_cluster_node_actor_count{node="beta"} 1',
        'nv_cluster_node_resource_total{node="alpha",resource="CPU"} 8',
        'nv_cluster_node_resource_total{node="alpha",resource="GPU"} 1',
        'nv_cluster_node_resource_total{node="beta",resource="CPU"} 8',
        'nv_cluster_node_resource_total{node="beta",resource="GPU"} 1',
        'nv_cluster_node_resource_available{node="alpha",resource="CPU"} 5',
        'nv_cluster_node_resource_available{node="alpha",resource="GPU"} 0.5',
        'nv_cluster_node_resource_available{node="beta",resource="CPU"} 5',
        'nv_cluster_node_resource_available{node="beta",resource="GPU"} 0.5',
    ]


def test_launcher_that_is_down_is_seen():
    assert "nv_cluster_launcher_up 1" in lines(cluster())
    assert "nv_cluster_unreachable_seconds 0" in lines(cluster())
    down = lines(ClusterStatus(problem="gone", launcher_restarts=2, unreachable_s=2.54))
    assert "nv_cluster_launcher_up 0" in down
    assert "nv_cluster_launcher_restart_count 2" in down
    assert "nv_cluster_unreachable_seconds 2.5" in down


def test_names_are_all_of_them():
    served = model("Add", FakeInstance("Add_0_0", "alpha", 7))
    made = {family.name for family in cluster_families(cluster(), [served])}

    assert made == set(CLUSTER_NAMES)
