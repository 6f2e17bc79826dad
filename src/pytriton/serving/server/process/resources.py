# SPDX-License-Identifier: Apache-2.0
"""Resources of this process: cores, memory, file descriptors, standard streams.

A container limits processor time and memory by its control group (cgroup), version 1 or 2, which
`os.cpu_count` does not see. The parsers are pure; only functions with a `root` read files.

Every client takes a descriptor. If clients could take all of them, the server could neither start
a process for a model nor share memory with one, so some are reserved for the server.
"""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
import resource
import sys
from collections.abc import Iterator
from typing import TextIO

_GROUPS = pathlib.PurePosixPath("sys/fs/cgroup")
# Where version 1 has its quotas: the controller's own folder, or one that it shares.
_CPU_FOLDERS = ("cpu", "cpu,cpuacct", "cpuacct,cpu")
# Some programs close every possible descriptor one by one when they start another program. That
# takes minutes with the limit of 2**30 that some container runtimes set.
_HIGHEST_LIMIT = 1 << 20
# macOS refuses a soft limit above OPEN_MAX if the hard limit is infinite (setrlimit(2)).
_OPEN_MAX = 10240
_MAX_RESERVED = 1024


def usable_cores(root: pathlib.Path = pathlib.Path("/")) -> int:
    """Returns the number of cores that this process may use, at least 1.

    Args:
        root: the folder that contains `proc` and `sys`; tests have one of their own.
    """
    quotas = _quotas(root, _read(root / "proc/self/cgroup"))
    # The part of a core beyond a whole number is left for the kernel and other processes.
    return max(1, math.floor(min([float(_scheduled_cores()), *quotas])))


def usable_memory(root: pathlib.Path = pathlib.Path("/")) -> int:
    """Returns the bytes of memory that this process may use: of the machine, or of its groups."""
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    version_2, version_1 = group_paths(_read(root / "proc/self/cgroup"), "memory")
    groups = root / _GROUPS
    files = [folder / "memory.max" for folder in _with_parents(groups, version_2)]
    folders = _with_parents(groups / "memory", version_1)
    files += [folder / "memory.limit_in_bytes" for folder in folders]
    return min([pages * page_bytes, *(bytes_of_limit(_read(file)) for file in files)])


def bytes_of_limit(text: str) -> int:
    """Returns the bytes of a `memory.max`; `sys.maxsize` if it is `max` or not there."""
    text = text.strip()
    return int(text) if text.isdecimal() else sys.maxsize


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


def cores_of_cpu_max(text: str) -> float:
    """Returns the cores of a `cpu.max`, `<quota> <period>` or `max <period>`; inf: no limit."""
    quota, _, period = text.strip().partition(" ")
    return cores_of_quota(quota, period)


def cores_of_quota(quota: str, period: str) -> float:
    """Returns the cores of a quota and a period in microseconds; no number, or -1: no limit."""
    try:
        cores = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return math.inf
    return cores if cores > 0 else math.inf


def _quotas(root: pathlib.Path, own_groups: str) -> Iterator[float]:
    """Yields the limits of this process's groups and of all groups that these are in."""
    version_2, version_1 = group_paths(own_groups)
    groups = root / _GROUPS
    for folder in _with_parents(groups, version_2):
        yield cores_of_cpu_max(_read(folder / "cpu.max"))
    for controller in _CPU_FOLDERS:
        for folder in _with_parents(groups / controller, version_1):
            yield cores_of_quota(
                _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
            )


def _with_parents(top: pathlib.Path, path: str) -> Iterator[pathlib.Path]:
    relative = pathlib.PurePosixPath(path.lstrip("/"))
    for part in (relative, *relative.parents):
        yield top / part


def _read(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # not on this system, not in this container, or not for this user
        return ""


def _scheduled_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def raise_limit() -> None:
    """Raise the soft limit to the hard limit, also for the processes that this one starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_MAX if sys.platform == "darwin" else _HIGHEST_LIMIT
    if hard != resource.RLIM_INFINITY:
        wanted = min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # a sandbox forbids it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def client_limit(*, is_essential: bool = False) -> int:
    """Returns the number from which on descriptors are reserved for the server itself.

    Essential clients are those of metrics, which may use half of the reserve.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    reserved = min(soft // 4, _MAX_RESERVED)
    return soft - (reserved // 2 if is_essential else reserved)


def descriptors_in_use(descriptor: int) -> tuple[int, int | None]:
    """Returns about how many descriptors this process has, and may have; None: no limit.

    The argument is any open descriptor.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = lowest_free(descriptor)
    used = soft if free == sys.maxsize else free
    return used, None if soft == resource.RLIM_INFINITY else soft


def lowest_free(descriptor: int) -> int:
    """Returns the number that the next descriptor would have; `sys.maxsize` if none is free.

    POSIX gives each new descriptor the lowest free number, so all lower numbers are in use. The
    argument is any open descriptor.
    """
    try:
        free = os.dup(descriptor)
    except OSError:
        return sys.maxsize
    os.close(free)
    return free


def open_missing_streams() -> None:
    """Let the standard streams that the process was started without lead nowhere.

    Otherwise the next file or socket gets the number of such a stream. Programs that write to
    standard error would write into it, and libuv aborts when it closes it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            with contextlib.suppress(OSError):
                os.fstat(number)
                continue  # another file has this number already
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number
            stream = os.fdopen(number, "w" if number else "r", closefd=False)
            setattr(sys, name, stream)
            # As for other streams: a worker puts its own in its place, and this must stay open.
            setattr(sys, f"__{name}__", stream)


def discard_unwritable_output() -> None:
    """Discard unwritten output if its reader has gone, so that the exit does not fail."""
    for stream in (sys.stdout, sys.stderr):
        _flush_or_discard(stream)


def _flush_or_discard(stream: TextIO) -> None:
    try:
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
