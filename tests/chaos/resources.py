# SPDX-License-Identifier: Apache-2.0
"""What a server holds: processes, descriptors, memory, threads and files, before and after.

`take` reads `/proc`; `growth` is pure and says what the server did not give back.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.chaos.processes import PROC, Process, Role

MIB = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """What one process holds."""

    pid: int
    role: Role
    descriptors: Mapping[str, int]  # by kind
    rss_bytes: int
    threads: int
    is_zombie: bool = False
    memfd_bytes: int = 0  # of shared memory that it has open, with or without others


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """What all processes of a server hold, and what lies in folders for temporary files."""

    processes: Mapping[str, Held]  # by the key of the process
    memfd_bytes: int
    temporary_files: frozenset[str]
    shared_memory_files: frozenset[str]


@dataclasses.dataclass(frozen=True, slots=True)
class Allowance:
    """How much more than before is no leak. Caches, pools and allocators fill up once."""

    descriptors: int = 6  # for each kind in each process
    threads: int = 4
    rss_factor: float = 1.5
    rss_bytes: int = 64 * MIB
    memfd_bytes: int = 8 * MIB


_NUMBERS = re.compile(r"\[?\d+\]?")
# Codec processes come on demand and end after half a minute without work.
_ON_DEMAND = {Role.CODEC}


def _kind_of(target: str) -> str:
    """What a descriptor is, without what differs from one to the next."""
    if target.startswith("/memfd:"):
        return "memfd"
    if target.startswith("/"):
        return "file"
    return _NUMBERS.sub("", target).rstrip(":")


def take(processes: Iterable[Process], temporary: Path, shared_memory: Path) -> Snapshot:
    """Read what these processes hold now; those that end meanwhile are left out."""
    held: dict[str, Held] = {}
    memory_files: dict[tuple[int, int], int] = {}
    counts: collections.Counter[str] = collections.Counter()
    for process in processes:
        try:
            one = _held(process, memory_files)
        except (FileNotFoundError, ProcessLookupError):
            continue
        counts[process.key] += 1
        number = counts[process.key]
        held[process.key if number == 1 else f"{process.key} #{number}"] = one
    return Snapshot(
        held,
        sum(memory_files.values()),
        frozenset(_files(temporary)),
        frozenset(_files(shared_memory)),
    )


def _held(process: Process, memory_files: dict[tuple[int, int], int]) -> Held:
    if process.is_zombie:
        return Held(process.pid, process.role, {}, 0, 0, is_zombie=True)
    folder = PROC / str(process.pid)
    kinds: collections.Counter[str] = collections.Counter()
    own: dict[tuple[int, int], int] = {}
    for entry in (folder / "fd").iterdir():
        try:
            kind = _kind_of(str(entry.readlink()))
            if kind == "memfd":
                status = entry.stat()
                own[status.st_dev, status.st_ino] = status.st_blocks * 512
        except FileNotFoundError:  # closed meanwhile
            continue
        kinds[kind] += 1
    fields = dict(
        line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line
    )
    memory_files |= own
    return Held(
        process.pid,
        process.role,
        dict(kinds),
        int(fields["VmRSS"].split()[0]) * 1024 if "VmRSS" in fields else 0,
        int(fields["Threads"]),
        memfd_bytes=sum(own.values()),
    )


def _files(folder: Path) -> Iterable[str]:
    return (str(path.relative_to(folder)) for path in folder.rglob("*"))


def growth(before: Snapshot, after: Snapshot, allowance: Allowance | None = None) -> list[str]:
    """What is more than before, or missing, one sentence each."""
    allowed = allowance or Allowance()
    found = _process_changes(before, after)
    for key, held in after.processes.items():
        if key in before.processes and not held.is_zombie:
            found += _held_more(key, before.processes[key], held, allowed)
    if after.memfd_bytes > before.memfd_bytes + allowed.memfd_bytes:
        found.append(
            f"shared memory of all processes grew from {_mib(before.memfd_bytes)} "
            f"to {_mib(after.memfd_bytes)}"
        )
    for name, old, new in (
        ("temporary file", before.temporary_files, after.temporary_files),
        ("file in /dev/shm", before.shared_memory_files, after.shared_memory_files),
    ):
        found += [f"{name} {path} is left" for path in sorted(new - old)]
    return found


def _process_changes(before: Snapshot, after: Snapshot) -> list[str]:
    zombies = [
        f"process {held.pid} ({key}) is a zombie"
        for key, held in after.processes.items()
        if held.is_zombie
    ]
    more = [
        f"process {held.pid} ({key}) is more than before"
        for key, held in after.processes.items()
        if key not in before.processes and not held.is_zombie and held.role not in _ON_DEMAND
    ]
    missing = [
        f"process {key} is missing"
        for key, held in before.processes.items()
        if key not in after.processes and held.role not in _ON_DEMAND
    ]
    return zombies + more + missing


def _held_more(key: str, old: Held, new: Held, allowed: Allowance) -> list[str]:
    found = [
        f"{key} ({new.pid}) has {count} descriptors of kind {kind}, "
        f"before {old.descriptors.get(kind, 0)}"
        for kind, count in sorted(new.descriptors.items())
        if count > old.descriptors.get(kind, 0) + allowed.descriptors
    ]
    if new.threads > old.threads + allowed.threads:
        found.append(f"{key} ({new.pid}) has {new.threads} threads, before {old.threads}")
    if new.rss_bytes > old.rss_bytes * allowed.rss_factor + allowed.rss_bytes:
        found.append(
            f"{key} ({new.pid}) has {_mib(new.rss_bytes)} of memory, before {_mib(old.rss_bytes)}"
        )
    return found


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.1f} MiB"


def table(before: Snapshot, after: Snapshot) -> list[str]:
    """Both snapshots side by side, for the report."""
    titles = ("descriptors", "threads", "memory in MiB", "shared memory")
    lines = [f"  {'process':<30} " + " ".join(f"{title:>13}" for title in titles)]
    for key in sorted(before.processes.keys() | after.processes.keys()):
        old, new = before.processes.get(key), after.processes.get(key)
        pairs = [
            f"{_shown(old, part)} > {_shown(new, part)}"
            for part in ("descriptors", "threads", "rss_bytes", "memfd_bytes")
        ]
        lines.append(f"  {key:<30} " + " ".join(f"{pair:>13}" for pair in pairs))
    pair = f"{_mib(before.memfd_bytes)} > {_mib(after.memfd_bytes)}"
    lines.append(f"  shared memory of all processes: {pair}")
    return lines


def _shown(held: Held | None, part: str) -> str:
    if held is None:
        return "-"
    if part == "descriptors":
        return str(sum(held.descriptors.values()))
    value: int = getattr(held, part)
    return str(value) if part == "threads" else f"{value / MIB:.0f}"
