# SPDX-License-Identifier: Apache-2.0
"""Reads the limits of a control group, such as a container's, on cores and memory."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import TypeVar

_Value = TypeVar("_Value", int, float)

_ROOT = pathlib.Path("/sys/fs/cgroup")
_MEMBERSHIP = pathlib.Path("/proc/self/cgroup")


def core_limit(root: pathlib.Path = _ROOT, membership: pathlib.Path = _MEMBERSHIP) -> float | None:
    """Returns how many cores all processes of the group may use together; None if not limited.

    Args:
        root: the folder where the control groups are mounted.
        membership: the file with the groups of this process.
    """
    return _least(_quota, root, membership)


def memory_limit(root: pathlib.Path = _ROOT, membership: pathlib.Path = _MEMBERSHIP) -> int | None:
    """Returns how many bytes all processes of the group may use together; None if not limited.

    Args:
        root: the folder where the control groups are mounted.
        membership: the file with the groups of this process.
    """
    return _least(_bytes, root, membership)


def _least(
    limit_of: Callable[[pathlib.Path], _Value | None],
    root: pathlib.Path,
    membership: pathlib.Path,
) -> _Value | None:
    limits = (limit_of(folder) for folder in _groups(root, membership))
    return min((limit for limit in limits if limit is not None), default=None)


def _groups(root: pathlib.Path, membership: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields the folder of this process's group and those of its parents, which all limit it.

    Inside a container the path may be the host's, of which only the root can be read.
    """
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:  # no control groups outside Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # Version 1 mounts each set of controllers in a folder of that name.
        mount = root / controllers.removeprefix("name=")
        group = mount / path.lstrip("/")
        for folder in (group, *group.parents):
            yield folder
            if folder == mount:
                break


def _quota(folder: pathlib.Path) -> float | None:
    text = _read(folder / "cpu.max")  # "150000 100000" or "max 100000"
    if text is None:
        text = f"{_read(folder / 'cpu.cfs_quota_us')} {_read(folder / 'cpu.cfs_period_us')}"
    quota, _, period = text.partition(" ")
    if not (quota.isdigit() and period.isdigit()):  # "max", -1, or no such file
        return None
    return int(quota) / int(period)


def _bytes(folder: pathlib.Path) -> int | None:
    text = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
    # In version 1, "no limit" is the largest multiple of the page size with 63 bits.
    return int(text) if text and text.isdigit() and int(text) < 1 << 60 else None


def _read(path: pathlib.Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return None
