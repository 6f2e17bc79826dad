# SPDX-License-Identifier: Apache-2.0
import pytest

from pytriton.base.control_groups import core_limit, memory_limit


@pytest.fixture
def group(tmp_path):
    """Writes a membership file and the files of control groups; gives the root of both."""

    def make(membership, files):
        texts = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
        for name, text in {"proc/self/cgroup": membership, **texts}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return make


def test_limits_of_a_container_are_read(group):
    root = group("0::/\n", {"cpu.max": "150000 100000\n", "memory.max": "268435456\n"})

    assert core_limit(root) == 1.5
    assert memory_limit(root) == 256 << 20


def test_no_limit_is_none(group):
    root = group("0::/\n", {"cpu.max": "max 100000\n", "memory.max": "max\n"})

    assert core_limit(root) is None
    assert memory_limit(root) is None


def test_groups_above_limit_as_well(group):
    root = group(
        "0::/user/job\n",
        {
            "user/job/memory.max": "max\n",
            "user/job/cpu.max": "400000 100000\n",
            "user/memory.max": "1073741824\n",
            "user/cpu.max": "200000 100000\n",
        },
    )

    assert core_limit(root) == 2
    assert memory_limit(root) == 1 << 30


def test_path_of_the_host_leads_to_the_root_that_a_container_sees(group):
    root = group("0::/system.slice/container\n", {"cpu.max": "50000 100000\n"})

    assert core_limit(root) == 0.5


def test_first_version_of_control_groups_is_read(group):
    root = group(
        "4:memory:/job\n3:cpu,cpuacct:/job\n1:name=systemd:/\n0::/\n",
        {
            "memory/job/memory.limit_in_bytes": "536870912\n",
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
            "cpu,cpuacct/job/cpu.cfs_quota_us": "-1\n",
            "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            "cpu,cpuacct/cpu.cfs_quota_us": "250000\n",
            "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )

    assert core_limit(root) == 2.5
    assert memory_limit(root) == 512 << 20


def test_machine_without_control_groups_has_no_limits(tmp_path):
    assert core_limit(tmp_path) is None
    assert memory_limit(tmp_path) is None
