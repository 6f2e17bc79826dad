# SPDX-License-Identifier: Apache-2.0
"""How many cores a process may use, in and out of containers."""

from __future__ import annotations

import os

import pytest

from pytriton.base.control_groups import cores_of_cpu_max, cores_of_quota, group_paths
from pytriton.serving.server.options.endpoints import FRONTENDS_VARIABLE, Surroundings
from pytriton.serving.server.process.resources import usable_cores, usable_memory

V1_GROUPS = "12:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n"


@pytest.fixture
def sixteen_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)), raising=False)


def system(tmp_path, files):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    "text, cores",
    [
        ("max 100000\n", None),
        ("200000 100000\n", 2.0),
        ("150000 100000\n", 1.5),
        ("50000 100000\n", 0.5),
        ("", None),
        ("200000\n", None),
        ("nonsense here\n", None),
        ("100000 0\n", None),
    ],
)
def test_cpu_max_is_a_quota_for_each_period(text, cores):
    assert cores_of_cpu_max(text) == cores


@pytest.mark.parametrize(
    "quota, period, cores",
    [
        ("400000\n", "100000\n", 4.0),
        ("-1\n", "100000\n", None),
        ("0", "100000", None),
        ("", "", None),
    ],
)
def test_quota_of_version_1_may_be_none(quota, period, cores):
    assert cores_of_quota(quota, period) == cores


@pytest.mark.parametrize(
    "text, expected",
    [
        ("0::/\n", ("/", "/")),
        ("0::/system.slice/a:b.service\n", ("/system.slice/a:b.service", "/")),
        (V1_GROUPS, ("/", "/docker/abc")),
        ("3:cpuset:/sets\n0::/user\n", ("/user", "/")),
        ("", ("/", "/")),
        ("nonsense\n0::\n", ("/", "/")),
    ],
)
def test_groups_of_a_process_have_one_path_for_each_version(text, expected):
    assert group_paths(text) == expected


@pytest.mark.usefixtures("sixteen_cores")
@pytest.mark.parametrize(
    "files, cores",
    [
        ({}, 16),
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, 16),
        ({"sys/fs/cgroup/cpu.max": "300000 100000"}, 3),
        ({"sys/fs/cgroup/cpu.max": "390000 100000"}, 3),
        ({"sys/fs/cgroup/cpu.max": "20000 100000"}, 1),
        ({"sys/fs/cgroup/cpu.max": "6400000 100000"}, 16),
        (
            {
                "proc/self/cgroup": "0::/pods/one\n",
                "sys/fs/cgroup/pods/one/cpu.max": "max 100000",
                "sys/fs/cgroup/pods/cpu.max": "500000 100000",
            },
            5,
        ),
        (
            {
                "proc/self/cgroup": V1_GROUPS,
                "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "700000",
                "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000",
            },
            7,
        ),
        (
            # Inside a container, the group that the host names is the root.
            {
                "proc/self/cgroup": V1_GROUPS,
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            2,
        ),
    ],
)
def test_smallest_limit_counts(tmp_path, files, cores):
    assert usable_cores(system(tmp_path, files)) == cores


def test_affinity_limits_the_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3, 5}, raising=False)

    assert usable_cores(tmp_path) == 2


@pytest.mark.parametrize("count, cores", [(12, 12), (None, 1)])
def test_system_without_affinity_counts_all_cores(tmp_path, monkeypatch, count, cores):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: count)

    assert usable_cores(tmp_path) == cores


def test_surroundings_are_those_of_this_process(monkeypatch):
    monkeypatch.setenv(FRONTENDS_VARIABLE, "3")

    assert Surroundings.read(usable_cores()) == Surroundings(
        cores=usable_cores(), frontend_processes="3"
    )
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    "files, expected",
    [
        ({}, None),
        ({"sys/fs/cgroup/memory.max": "max\n"}, None),
        ({"sys/fs/cgroup/memory.max": "1048576\n"}, 1 << 20),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/memory.max": "2097152\n",
            },
            2 << 20,
        ),
        (
            {
                "proc/self/cgroup": V1_GROUPS,
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "3145728\n",
            },
            3 << 20,
        ),
    ],
)
def test_memory_is_that_of_the_machine_or_of_the_smallest_group(tmp_path, files, expected):
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    assert usable_memory(system(tmp_path, files)) == (expected or machine)
