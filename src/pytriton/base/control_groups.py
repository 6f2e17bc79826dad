# SPDX-License-Identifier: Apache-2.0
"""The limits that control groups (cgroup), version 1 or 2, set for this process, as in a container.

The parsers are pure; functions with a `root` read files. It is the folder that contains `proc` and
`sys`; tests have one of their own.
"""

from __future__ import annotations

import os
import pathlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_GROUPS = pathlib.PurePosixPath("sys/fs/cgroup")
# Where version 1 has its quotas: the controller's own folder, or one that it shares.
_CPU_FOLDERS = ("cpu", "cpu,cpuacct", "cpuacct,cpu")
# In version 1, "no limit" is the largest multiple of the page size with 63 bits.
_NO_LIMIT = 1 << 60
_ROOT = pathlib.Path("/")


def scheduled_cores() -> int:
    """Returns on how many cores the system lets this process run, without those limits."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def core_limit(root: pathlib.Path = _ROOT) -> float | None:
    """Returns how many cores all processes of the group may use together; None if not limited."""
    version_2, version_1 = group_paths(_read(root / "proc/self/cgroup"))
    groups = root / _GROUPS
    limits = [
        cores_of_cpu_max(_read(each / "cpu.max")) for each in _with_parents(groups, version_2)
    ]
    for controller in _CPU_FOLDERS:
        for folder in _with_parents(groups / controller, version_1):
            quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
            limits.append(cores_of_quota(quota, period))
    return min((each for each in limits if each is not None), default=None)


def memory_limit(root: pathlib.Path = _ROOT) -> int | None:
    """Returns how many bytes all processes of the group may use together, as `core_limit`."""
    version_2, version_1 = group_paths(_read(root / "proc/self/cgroup"), "memory")
    groups = root / _GROUPS
    files = [folder / "memory.max" for folder in _with_parents(groups, version_2)]
    folders = _with_parents(groups / "memory", version_1)
    files += [folder / "memory.limit_in_bytes" for folder in folders]
    limits = (bytes_of_limit(_read(file)) for file in files)
    return min((each for each in limits if each is not None), default=None)


def bytes_of_limit(text: str) -> int | None:
    """Returns the bytes of a `memory.max`; None if there is no limit, or the file is not there."""
    text = text.strip()
    return int(text) if text.isdecimal() and int(text) < _NO_LIMIT else None


def group_paths(text: str, controller: str = "cpu") -> tuple[str, str]:
    """Returns the paths of a process's groups in version 2 and in version 1 for a controller.

    The text is that of /proc/self/cgroup. Each line is `number:controllers:path`; version 2 has the
    number 0 and no controllers. A path that is not there is the root, as in most containers.
    """
    version_2 = version_1 = "/"
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not path.startswith("/"):
            continue
        if number == "0" and not controllers:
            version_2 = path
        elif controller in controllers.split(","):
            version_1 = path
    return version_2, version_1


def cores_of_cpu_max(text: str) -> float | None:
    """Returns the cores of a `cpu.max`, `<quota> <period>` or `max <period>`; None: no limit."""
    quota, _, period = text.strip().partition(" ")
    return cores_of_quota(quota, period)


def cores_of_quota(quota: str, period: str) -> float | None:
    """Returns the cores of a quota and a period in microseconds; no number, or -1: no limit."""
    try:
        cores = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None
    return cores if cores > 0 else None


def _with_parents(top: pathlib.Path, path: str) -> Iterator[pathlib.Path]:
    """Yields a group and those that it is in, which all limit it.

    Inside a container the path may be the host's, of which only the root can be read.
    """
    relative = pathlib.PurePosixPath(path.lstrip("/"))
    for part in (relative, *relative.parents):
        yield top / part


def _read(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # not on this system, not in this container, or not for this user
        return ""
