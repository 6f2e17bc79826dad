# SPDX-License-Identifier: Apache-2.0
"""Confines this process, a worker that was just forked and has one thread, for all its life.

The order matters. Mounts need privileges, which are dropped next. Landlock and seccomp need the
promise to gain none. The filter comes last, because it denies what the steps before it do.
"""

from __future__ import annotations

import contextlib
import os
import resource
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from pytriton.base.sandbox import SandboxPolicy
from pytriton.runtime.sandbox import kernel as linux
from pytriton.runtime.sandbox.seccomp import Instruction, Rule, make_program, rules

READ = linux.EXECUTE | linux.READ_FILE | linux.READ_DIR
WRITE = (
    READ
    | linux.WRITE_FILE
    | linux.REMOVE_DIR
    | linux.REMOVE_FILE
    | linux.MAKE_DIR
    | linux.MAKE_REG
    | linux.MAKE_SOCK
    | linux.MAKE_FIFO
    | linux.MAKE_SYM
    | linux.REFER
    | linux.TRUNCATE
)
DEVICE = READ | linux.WRITE_FILE | linux.TRUNCATE | linux.IOCTL_DEV
SHARED_MEMORY = "/dev/shm"  # noqa: S108  not a file of ours
_FIRST_DESCRIPTOR = 3
_SCRATCH_FILES = 100_000  # in one scratch folder
_FOLDERS = ("home", "tmp", "shm")
# Places in the user's home, which a worker does not see.
_HOME_VARIABLES = (
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME",
)  # fmt: skip


class Kernel(Protocol):
    """The calls that confine a process; see `LinuxKernel`."""

    processor: str

    def create_ruleset(self, version: int, *, has_network: bool) -> int: ...
    def add_path(self, ruleset: int, descriptor: int, rights: int) -> None: ...
    def restrict_self(self, ruleset: int) -> None: ...
    def set_filter(self, program: list[Instruction]) -> None: ...
    def set_no_new_privileges(self) -> None: ...
    def drop_capabilities(self) -> None: ...
    def adopt_orphans(self) -> None: ...
    def unshare_mounts(self) -> bool: ...
    def bind(self, source: str, target: str) -> None: ...
    def mount_memory(self, target: str, size_bytes: int, files: int) -> None: ...
    def set_read_only(self, target: str, *, is_read_only: bool) -> None: ...


def confine(policy: SandboxPolicy, scratch: str, kept: Iterable[int], kernel: Kernel) -> None:
    """Confine this process.

    Args:
        policy: What it may do.
        scratch: An empty folder of its own.
        kept: Its descriptors; all others are closed, except the standard streams.
        kernel: The calls.

    Raises:
        OSError: A part that the machine should have cannot be applied. Nothing of the model may run
            then.
    """
    close_others(kept)
    kernel.adopt_orphans()
    has_users = False
    if policy.has_mounts:
        has_users = kernel.unshare_mounts()
        _mount(policy, scratch, kernel)
    for name in _FOLDERS:
        (Path(scratch) / name).mkdir(mode=0o700, exist_ok=True)
    if policy.has_mounts and Path(SHARED_MEMORY).is_dir():
        kernel.bind(f"{scratch}/shm", SHARED_MEMORY)
    use_scratch(scratch)
    limit_resources(policy, has_users=has_users)
    # Opened with the privileges that the server has, which may be more than the worker's.
    ruleset = _make_ruleset(policy, scratch, kernel) if policy.landlock else None
    kernel.drop_capabilities()
    kernel.set_no_new_privileges()
    if ruleset is not None:
        kernel.restrict_self(ruleset)
        os.close(ruleset)
    kernel.set_filter(make_program(_rules(policy), kernel.processor))


def _rules(policy: SandboxPolicy) -> list[Rule]:
    return rules(
        os.getpid(),
        has_network=policy.has_network,
        has_unix=policy.has_unix,
        has_signal_scope=policy.landlock >= linux.SCOPE_VERSION,
        has_truncate_right=policy.landlock >= linux.TRUNCATE_VERSION,
        has_mounts=policy.has_mounts,
    )


def close_others(kept: Iterable[int]) -> None:
    """Close all descriptors but the standard streams and those that are kept."""
    first = _FIRST_DESCRIPTOR
    for descriptor in sorted(kept):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _mount(policy: SandboxPolicy, scratch: str, kernel: Kernel) -> None:
    """Make all files read only that the worker must not change, and bound its scratch folder.

    Landlock does not judge changes of modes, owners and times; a file system that is read only
    refuses them.
    """
    writable = [path for path in policy.writable if Path(path).exists()]
    for path in writable:
        kernel.bind(path, path)
    kernel.set_read_only("/", is_read_only=True)
    for path in writable:
        kernel.set_read_only(path, is_read_only=False)
    kernel.mount_memory(scratch, policy.scratch_bytes, _SCRATCH_FILES)


def use_scratch(scratch: str) -> None:
    """Let libraries write their temporary and personal files to the scratch folder."""
    os.environ.update(TMPDIR=str(Path(scratch) / "tmp"), HOME=f"{scratch}/home")
    for name in _HOME_VARIABLES:
        os.environ.pop(name, None)
    tempfile.tempdir = None  # the module remembers the place of the process that was forked


def limit_resources(policy: SandboxPolicy, *, has_users: bool) -> None:
    """Set the limits that hold for each process, where no control group has better ones."""
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, policy.files)
    if not policy.has_mounts:
        _limit(resource.RLIMIT_FSIZE, policy.scratch_bytes)
    if policy.memory_bytes is not None and "memory" not in policy.groups:
        # Not RLIMIT_AS: CUDA and others reserve more addresses than a machine has memory.
        _limit(resource.RLIMIT_DATA, policy.memory_bytes)
    if "pids" not in policy.groups:
        others = 0 if has_users else count_tasks(os.getuid())  # a user namespace counts its own
        _limit(resource.RLIMIT_NPROC, others + policy.processes)


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def count_tasks(user: int) -> int:
    """Returns how many processes and threads a user has now."""
    count = 0
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            if process.name.isdecimal() and process.stat().st_uid == user:
                count += len(os.listdir(process / "task"))  # noqa: PTH208  only their number
    return count


def _make_ruleset(policy: SandboxPolicy, scratch: str, kernel: Kernel) -> int:
    version = policy.landlock
    ruleset = kernel.create_ruleset(version, has_network=policy.has_network)
    known = linux.all_rights(version)
    for path, wanted in _rights(policy, scratch):
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # this machine does not have it, or the user sees nothing of it anyway
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        rights = wanted if is_folder else wanted & linux.FILE_RIGHTS
        kernel.add_path(ruleset, descriptor, rights & known)
        os.close(descriptor)
    # The kernel may forget the folder of a process and make it anew, and Landlock would not know
    # the new one. While a descriptor is open it is not forgotten.
    own = os.open(f"/proc/{os.getpid()}", os.O_PATH | os.O_CLOEXEC)
    kernel.add_path(ruleset, own, READ & known)
    return ruleset


def _rights(policy: SandboxPolicy, scratch: str) -> Iterator[tuple[str, int]]:
    yield from ((path, READ) for path in policy.readable)
    yield from ((path, WRITE) for path in (*policy.writable, scratch))
    yield from ((path, DEVICE) for path in policy.devices)
    if policy.has_mounts:  # this is a part of the scratch folder
        yield SHARED_MEMORY, WRITE
