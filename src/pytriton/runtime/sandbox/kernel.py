# SPDX-License-Identifier: Apache-2.0
"""The system calls of a sandbox, each as one method, through ctypes.

This is the only module that changes the rights of a process. Nothing of Linux is looked up when it
is imported. Calls of Landlock and seccomp are made by number, as C libraries lack names for them.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Sequence

from pytriton.runtime.sandbox.seccomp import Instruction

# <linux/landlock.h>, rights on files
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REMOVE_DIR, REMOVE_FILE, MAKE_CHAR, MAKE_DIR = 1 << 4, 1 << 5, 1 << 6, 1 << 7
MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK = 1 << 8, 1 << 9, 1 << 10, 1 << 11
MAKE_SYM, REFER, TRUNCATE, IOCTL_DEV = 1 << 12, 1 << 13, 1 << 14, 1 << 15
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV  # the others are of folders
# The first version of Landlock's interface that knows more than the rights of files.
TRUNCATE_VERSION, NETWORK_VERSION, IOCTL_VERSION, SCOPE_VERSION = 3, 4, 5, 6

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on all processors
_MOUNT_SETATTR = 442
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
_BIND_TCP, _CONNECT_TCP = 1, 2
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1, 2
_SET_MODE_FILTER = 1
_GET_ACTION_AVAIL = 2
_FLAG_SPEC_ALLOW = 4  # without it, older kernels slow the whole process down
_RET_ERRNO = 0x00050000
# <linux/prctl.h>
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_PR_SET_NO_NEW_PRIVS, _PR_GET_NO_NEW_PRIVS = 38, 39
_PR_SET_CHILD_SUBREAPER = 36
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION_3 = 0x20080522
_MAX_CAPABILITIES = 64
# <linux/mount.h>, <linux/sched.h>
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 0x1000, 0x4000, 1 << 18
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_ATTR_RDONLY = 1


def all_rights(version: int) -> int:
    """Returns the rights on files that a version of Landlock's interface knows."""
    rights = (REFER - 1) | (REFER if version >= 2 else 0)
    if version >= TRUNCATE_VERSION:
        rights |= TRUNCATE
    return rights | (IOCTL_DEV if version >= IOCTL_VERSION else 0)


class LinuxKernel:
    """The calls of this machine's kernel. They change this process, or the thread that calls."""

    def __init__(self) -> None:
        self.processor = platform.machine()
        self._libc = ctypes.CDLL(None, use_errno=True)

    # Landlock

    def landlock_version(self) -> int:
        """Returns the version of Landlock's interface; 0 if there is none."""
        version: int = self._libc.syscall(
            ctypes.c_long(_CREATE_RULESET),
            None,
            ctypes.c_size_t(0),
            ctypes.c_uint32(_CREATE_RULESET_VERSION),
        )
        return max(version, 0)

    def create_ruleset(self, version: int, *, has_network: bool) -> int:
        """Returns the descriptor of a ruleset that denies all that this version can deny."""
        network = 0 if has_network or version < NETWORK_VERSION else _BIND_TCP | _CONNECT_TCP
        scopes = _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS if version >= SCOPE_VERSION else 0
        # An older kernel accepts a longer record if what it does not know is zero.
        record = struct.pack("=QQQ", all_rights(version), network, scopes)
        return self._call(
            "landlock_create_ruleset", _CREATE_RULESET, record, ctypes.c_size_t(len(record)), 0
        )

    def add_path(self, ruleset: int, descriptor: int, rights: int) -> None:
        """Allow rights on a file or on all that is in a folder, which is opened with O_PATH."""
        record = struct.pack("=Qi", rights, descriptor)
        self._call("landlock_add_rule", _ADD_RULE, ruleset, _RULE_PATH_BENEATH, record, 0)

    def restrict_self(self, ruleset: int) -> None:
        """Apply a ruleset to this thread for ever, and to all that it will start."""
        self._call("landlock_restrict_self", _RESTRICT_SELF, ruleset, 0)

    # seccomp

    def has_filters(self) -> bool:
        """Returns whether programs of seccomp can answer calls with an error."""
        number = _SECCOMP.get(self.processor)
        if number is None:
            return False
        action = ctypes.c_uint32(_RET_ERRNO)
        result: int = self._libc.syscall(
            ctypes.c_long(number), _GET_ACTION_AVAIL, 0, ctypes.byref(action)
        )
        return result == 0

    def set_filter(self, program: Sequence[Instruction]) -> None:
        """Apply a program to this thread for ever, and to all that it will start."""
        code = b"".join(struct.pack("=HBBI", *each) for each in program)
        memory = ctypes.create_string_buffer(code, len(code))
        record = struct.pack("@HP", len(program), ctypes.addressof(memory))
        number = _SECCOMP[self.processor]
        self._call("seccomp", number, _SET_MODE_FILTER, _FLAG_SPEC_ALLOW, record)

    # Privileges

    def set_no_new_privileges(self) -> None:
        """Let no program that is executed gain privileges, say by its set-user-id bit."""
        self._prctl("no new privileges", _PR_SET_NO_NEW_PRIVS, 1)

    def drop_capabilities(self) -> None:
        """Give up all capabilities, also those that root gets with the next program."""
        for number in range(_MAX_CAPABILITIES):
            held: int = self._libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0)
            if held < 0:
                break
            # Without CAP_SETPCAP this fails: then the process has no privileges to lose, and with
            # `set_no_new_privileges` gains none.
            self._libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
        self._libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
        header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
        self._call("capset", _CAPSET[self.processor], header, bytes(24))

    def adopt_orphans(self) -> None:
        """Become the parent of all processes below whose own parent ends."""
        self._prctl("child subreaper", _PR_SET_CHILD_SUBREAPER, 1)

    # A view of the file systems

    def unshare_mounts(self) -> bool:
        """Get a copy of all mounts; returns whether that took a user namespace, too."""
        user, group = os.getuid(), os.getgid()
        has_users: bool = self._libc.unshare(_CLONE_NEWNS) < 0  # only an administrator may do that
        if has_users:
            self._check("unshare", self._libc.unshare(_CLONE_NEWNS | _CLONE_NEWUSER))
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/uid_map", f"{user} {user} 1")
            _write("/proc/self/gid_map", f"{group} {group} 1")
        self._mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE)
        return has_users

    def bind(self, source: str, target: str) -> None:
        """Show a folder or a file at another place, or at its own, as a mount."""
        self._mount(os.fsencode(source), os.fsencode(target), None, _MS_BIND | _MS_REC)

    def mount_memory(self, target: str, size_bytes: int, files: int) -> None:
        """Mount a bounded file system in memory."""
        options = f"size={size_bytes},nr_inodes={files},mode=0700".encode()
        flags = _MS_NOSUID | _MS_NODEV
        self._mount(b"tmpfs", os.fsencode(target), b"tmpfs", flags, options)

    def set_read_only(self, target: str, *, is_read_only: bool) -> None:
        """Set whether what is mounted at a place, and everything below, can be written."""
        attribute = (_ATTR_RDONLY, 0) if is_read_only else (0, _ATTR_RDONLY)
        record = struct.pack("=QQQQ", *attribute, 0, 0)
        self._call(
            "mount_setattr",
            _MOUNT_SETATTR,
            _AT_FDCWD,
            os.fsencode(target),
            _AT_RECURSIVE,
            record,
            ctypes.c_size_t(len(record)),
        )

    def _mount(
        self, source: bytes, target: bytes, kind: bytes | None, flags: int, options: bytes = b""
    ) -> None:
        mounted = self._libc.mount(source, target, kind, ctypes.c_ulong(flags), options or None)
        self._check(f"mount at {os.fsdecode(target)}", mounted)

    def _prctl(self, what: str, option: int, value: int) -> None:
        self._check(what, self._libc.prctl(option, value, 0, 0, 0))

    def _call(self, what: str, number: int, *arguments: object) -> int:
        words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
        return self._check(what, self._libc.syscall(ctypes.c_long(number), *words))

    @staticmethod
    def _check(what: str, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{what}: {os.strerror(number)}")
        return result


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
