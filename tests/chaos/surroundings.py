# SPDX-License-Identifier: Apache-2.0
"""A mount namespace of the harness's own: a small disk, and a `/dev/shm` that nobody else uses.

It ends with its last process, so nothing has to be unmounted. Where the system does not allow it,
the harness goes on without a disk that can be full.
"""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import os
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_MNT_DETACH = 2
DISK_BYTES = 48 << 20
SHARED_MEMORY = Path("/dev/shm")


@dataclasses.dataclass(frozen=True, slots=True)
class Surroundings:
    """What the harness could get for itself."""

    has_mounts: bool
    reason: str = ""  # why not


def enter() -> Surroundings:
    """Enter a namespace with a fresh `/dev/shm`. A process with threads may lack the right."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWNS) != 0:
        if libc.unshare(_CLONE_NEWNS | _CLONE_NEWUSER) != 0:
            return Surroundings(False, _text("unshare"))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    # Nothing that is mounted from here on is seen outside.
    if libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None) != 0:
        return Surroundings(False, _text("mount"))
    return (
        Surroundings(True) if mount(SHARED_MEMORY, 1 << 30) else Surroundings(False, _text("mount"))
    )


def mount(folder: Path, size_bytes: int) -> bool:
    """Mount a file system in memory with a size; whether the system allowed it."""
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={size_bytes}".encode()
    return libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, options) == 0


def unmount(folder: Path) -> None:
    """Unmount what `mount` has mounted, whoever still has a file of it open."""
    ctypes.CDLL(None).umount2(os.fsencode(folder), _MNT_DETACH)


def _text(call: str) -> str:
    number = ctypes.get_errno()
    return f"{call} failed with {errno.errorcode.get(number, number)}"
