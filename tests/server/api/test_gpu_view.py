# SPDX-License-Identifier: Apache-2.0
"""Memory on GPUs by process, model and device."""

from __future__ import annotations

import types

import pytest

from pytriton.base.nvml import DeviceReading
from pytriton.serving.server.api.gpu_view import ProcessMemory, memory_by_model, process_memory


def model(name, *instances, version=1, namespace=""):
    spec = types.SimpleNamespace(name=name, version=version, namespace=namespace)
    return types.SimpleNamespace(spec=spec, instances=instances)


def instance(name, pid=0, node=""):
    return types.SimpleNamespace(name=name, pid=pid, node=node)


def gpu(uuid, **memory):
    return DeviceReading(uuid, process_bytes={int(pid[1:]): size for pid, size in memory.items()})


def test_processes_of_instances_are_found_on_each_device():
    models = [model("a", instance("a_0", 1), instance("a_1", 2)), model("b", instance("b_0", 3))]
    found = process_memory(models, [gpu("x", p1=10, p9=99), gpu("y", p1=5, p3=7)])

    assert found == [
        ProcessMemory(1, "x", 10, ("a_0",), (("", "a", 1),)),
        ProcessMemory(1, "y", 5, ("a_0",), (("", "a", 1),)),
        ProcessMemory(3, "y", 7, ("b_0",), (("", "b", 1),)),
    ]
    assert memory_by_model(found) == {("", "a", 1): {"x": 10, "y": 5}, ("", "b", 1): {"y": 7}}


def test_process_with_several_instances_counts_once_for_each_of_its_models():
    shared = [instance("a_0", 1), instance("a_1", 1)]
    models = [model("a", *shared), model("b", instance("b_0", 1), version=2)]
    (process,) = process_memory(models, [gpu("x", p1=10)])

    assert process.instances == ("a_0", "a_1", "b_0")
    assert memory_by_model([process]) == {("", "a", 1): {"x": 10}, ("", "b", 2): {"x": 10}}


@pytest.mark.parametrize(
    "where", [instance("a_0"), instance("a_0", 1, "node"), types.SimpleNamespace(name="a_0")]
)
def test_process_that_is_unknown_or_on_another_machine_has_no_memory_here(where):
    assert process_memory([model("a", where)], [gpu("x", p1=10, p0=3)]) == []


def test_nothing_is_read_of_models_without_processes_on_gpus():
    assert process_memory(None, [gpu("x")]) == []
