# SPDX-License-Identifier: Apache-2.0
"""The processes of a server as `/proc` shows them: who they are, and signals to them.

Everything that a server starts stays in its session, which the harness made for it.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import re
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")


class Role(enum.Enum):
    """What a process of a server is for."""

    SCRIPT = "script"  # binds functions with `Triton`
    SERVER = "server"
    WORKER_ZYGOTE = "zygote of workers"
    FRONT_END_ZYGOTE = "zygote of front ends"
    WORKER = "worker"
    FRONT_END = "front end"
    STARTING = "starting"  # forked by a zygote, and not yet named
    CODEC = "codec"
    OTHER = "other"


@dataclasses.dataclass(frozen=True, slots=True)
class Process:
    """One process at one time. Its start tells it from a later one with the same id."""

    pid: int
    parent: int
    started_ticks: int
    state: str  # the letter that `/proc` has
    role: Role
    name: str  # of a worker its instance, of a front end its number

    @property
    def is_zombie(self) -> bool:
        return self.state == "Z"

    @property
    def key(self) -> str:
        """What a process that replaces this one has in common with it."""
        return f"{self.role.value} {self.name}".strip()

    @property
    def model(self) -> str:
        """The model of a worker: `add_1_0` is an instance of version 1 of `add`."""
        return self.name.rsplit("_", 2)[0] if self.role is Role.WORKER else ""

    def is_running(self) -> bool:
        """Whether this very process lives, as a zombie or not."""
        stat = _read_stat(self.pid)
        return stat is not None and stat.started_ticks == self.started_ticks

    def has_ended(self) -> bool:
        """Whether nothing runs any more, even if nobody has looked after its exit code yet."""
        stat = _read_stat(self.pid)
        return stat is None or stat.started_ticks != self.started_ticks or stat.state == "Z"

    def send(self, number: int) -> bool:
        """Send a signal; whether the process was there to get it."""
        if not self.is_running():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


@dataclasses.dataclass(frozen=True, slots=True)
class _Stat:
    parent: int
    session: int
    state: str
    started_ticks: int


def _read_stat(pid: int) -> _Stat | None:
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return parse_stat(text)


def parse_stat(text: str) -> _Stat:
    """Read a line of `/proc/PID/stat`; a name in it may have spaces and brackets."""
    fields = text[text.rindex(")") + 2 :].split()
    return _Stat(int(fields[1]), int(fields[3]), fields[0], int(fields[19]))


def _title(pid: int) -> str:
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return raw.replace(b"\0", b" ").decode(errors="replace").strip()


_TITLES = (
    (re.compile(r"^triton_python_backend_stub (\S+)"), Role.WORKER),
    (re.compile(r"^pytriton front end (\d+)"), Role.FRONT_END),
    (re.compile(r"pytriton zygote of workers|worker_process\.zygote"), Role.WORKER_ZYGOTE),
    (re.compile(r"pytriton zygote of front ends|frontend\.process"), Role.FRONT_END_ZYGOTE),
    (re.compile(r"server\.codec\.child"), Role.CODEC),
    (re.compile(r"-m pytriton\.server|^tritonserver|--control-fd"), Role.SERVER),
)
_ZYGOTES = (Role.WORKER_ZYGOTE, Role.FRONT_END_ZYGOTE)


def role_of(title: str) -> tuple[Role, str]:
    """The role that a title tells, and the name of the process in it."""
    for pattern, role in _TITLES:
        found = pattern.search(title)
        if found is not None:
            return role, found.group(1) if pattern.groups else ""
    return Role.OTHER, ""


def family(session: int, script: int | None = None) -> list[Process]:
    """All processes of a session, in the order of their start."""
    stats = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            stat = _read_stat(int(entry.name))
            if stat is not None and stat.session == session:
                stats[int(entry.name)] = stat
    roles = {pid: role_of(_title(pid)) for pid in stats}
    found = []
    for pid, stat in stats.items():
        role, name = roles[pid]
        parent_role = roles.get(stat.parent, (Role.OTHER, ""))[0]
        if pid == script:
            role = Role.SCRIPT
        elif role in _ZYGOTES and parent_role in _ZYGOTES:
            role = Role.STARTING  # it still has the title of the zygote that forked it
        if stat.state == "Z" and stat.parent not in stats:
            continue  # an orphan, for the first process of the machine to reap
        found.append(Process(pid, stat.parent, stat.started_ticks, stat.state, role, name))
    return sorted(found, key=lambda each: (each.started_ticks, each.pid))


def of_role(processes: Iterable[Process], *roles: Role) -> list[Process]:
    return [each for each in processes if each.role in roles and not each.is_zombie]
