# SPDX-License-Identifier: Apache-2.0
"""What is asked of the kernel, and in which order: on a kernel that only takes notes.

It stands for kernels that this machine does not have: older versions of Landlock, or none.
"""

from __future__ import annotations

import os
import pathlib
import resource
import sys

import pytest

from pytriton.base.sandbox import SandboxPolicy
from pytriton.runtime.sandbox import confinement
from pytriton.runtime.sandbox import kernel as linux
from pytriton.runtime.sandbox.confinement import DEVICE, READ, WRITE, confine, count_tasks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes need Linux")


class NotedKernel:
    """Takes notes of all calls; `add_path` knows paths by their descriptors."""

    processor = "x86_64"

    def __init__(self, fails_at=""):
        self.calls = []
        self.rights = {}
        self.program = []
        self._fails_at = fails_at

    def _note(self, *call):
        self.calls.append(call)
        if call[0] == self._fails_at:
            raise OSError(1, f"{call[0]} is not permitted")

    def create_ruleset(self, version, *, has_network):
        self._note("ruleset", version, has_network)
        return os.open(os.devnull, os.O_RDONLY)

    def add_path(self, ruleset, descriptor, rights):
        self.rights[str(pathlib.Path(f"/proc/self/fd/{descriptor}").readlink())] = rights

    def restrict_self(self, ruleset):
        self._note("landlock")

    def set_filter(self, program):
        self._note("seccomp")
        self.program = program

    def set_no_new_privileges(self):
        self._note("privileges")

    def drop_capabilities(self):
        self._note("capabilities")

    def adopt_orphans(self):
        self._note("orphans")

    def unshare_mounts(self):
        self._note("unshare")
        return False

    def bind(self, source, target):
        self._note("bind", source, target)

    def mount_memory(self, target, size_bytes, files):
        self._note("memory", target, size_bytes)

    def set_read_only(self, target, *, is_read_only):
        self._note("read only" if is_read_only else "writable", target)


@pytest.fixture
def limits(monkeypatch):
    """The limits that would be set, and an environment that may be changed."""
    found = {}
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: found.update({kind: pair[0]}))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 40, resource.RLIM_INFINITY))
    monkeypatch.setattr(confinement, "close_others", lambda kept: found.update(kept=list(kept)))
    for name in ("HOME", "TMPDIR"):
        monkeypatch.setenv(name, "/before")
    monkeypatch.setenv("XDG_CACHE_HOME", "/before/cache")
    monkeypatch.setattr("tempfile.tempdir", "/before")
    return found


def confined(tmp_path, limits, fails_at="", **policy):
    kernel = NotedKernel(fails_at)
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    confine(SandboxPolicy(**policy), str(scratch), [7, 8], kernel)
    return kernel, scratch


def test_parts_are_applied_in_order(tmp_path, limits):
    data = tmp_path / "data"
    data.mkdir()

    kernel, scratch = confined(
        tmp_path, limits, landlock=7, has_mounts=True, writable=(str(data), "/missing")
    )

    assert limits["kept"] == [7, 8]
    assert kernel.calls == [
        ("orphans",),
        ("unshare",),
        ("bind", str(data), str(data)),
        ("read only", "/"),
        ("writable", str(data)),
        ("memory", str(scratch), 1 << 30),
        ("bind", f"{scratch}/shm", "/dev/shm"),
        ("ruleset", 7, False),
        ("capabilities",),
        ("privileges",),
        ("landlock",),
        ("seccomp",),
    ]


def test_worker_has_the_rights_of_its_policy(tmp_path, limits):
    file = tmp_path / "file"
    file.touch()

    kernel, scratch = confined(
        tmp_path,
        limits,
        landlock=7,
        readable=(str(tmp_path), str(file), "/missing"),
        devices=("/dev/null",),
    )

    assert kernel.rights[str(tmp_path)] == READ
    assert kernel.rights[str(file)] == READ & linux.FILE_RIGHTS
    assert kernel.rights[str(scratch)] == WRITE
    assert kernel.rights["/dev/null"] == DEVICE & linux.FILE_RIGHTS
    assert kernel.rights[f"/proc/{os.getpid()}"] == READ
    assert "/dev/shm" not in kernel.rights
    assert not WRITE & (linux.MAKE_CHAR | linux.MAKE_BLOCK | linux.IOCTL_DEV)


@pytest.mark.parametrize(
    "version, unknown",
    [
        (1, linux.REFER | linux.TRUNCATE | linux.IOCTL_DEV),
        (2, linux.TRUNCATE | linux.IOCTL_DEV),
        (3, linux.IOCTL_DEV),
        (4, linux.IOCTL_DEV),
        (5, 0),
        (6, 0),
    ],
)
def test_older_landlock_gets_no_rights_that_it_does_not_know(tmp_path, limits, version, unknown):
    kernel, scratch = confined(tmp_path, limits, landlock=version, devices=(str(tmp_path),))

    given = kernel.rights[str(scratch)] | kernel.rights[str(tmp_path)]
    assert not given & unknown
    assert linux.all_rights(version) & unknown == 0


def test_kernel_without_landlock_gets_the_other_parts(tmp_path, limits):
    kernel, _ = confined(tmp_path, limits)

    assert [call[0] for call in kernel.calls] == [
        "orphans", "capabilities", "privileges", "seccomp",
    ]  # fmt: skip


def test_filter_does_what_landlock_cannot(tmp_path, limits):
    old, _ = confined(tmp_path, limits, landlock=1)
    new, _ = confined(tmp_path, limits, landlock=7, has_mounts=True)

    assert len(old.program) > len(new.program)


def test_temporary_and_personal_files_go_to_the_scratch_folder(tmp_path, limits):
    _, scratch = confined(tmp_path, limits)

    assert os.environ["HOME"] == f"{scratch}/home"
    assert os.environ["TMPDIR"] == f"{scratch}/tmp"
    assert "XDG_CACHE_HOME" not in os.environ
    assert sorted(path.name for path in scratch.iterdir()) == ["home", "shm", "tmp"]


def test_limits_of_processes_are_set_where_nothing_else_limits_them(tmp_path, limits):
    confined(tmp_path, limits, memory_bytes=5 << 20, processes=9, files=10, scratch_bytes=11)

    others = count_tasks(os.getuid())
    assert limits[resource.RLIMIT_CORE] == 0
    assert limits[resource.RLIMIT_NOFILE] == 10
    assert limits[resource.RLIMIT_FSIZE] == 11
    assert limits[resource.RLIMIT_DATA] == 5 << 20
    assert abs(limits[resource.RLIMIT_NPROC] - 9 - others) < 500  # others come and go
    assert resource.RLIMIT_AS not in limits


def test_limits_of_control_groups_and_mounts_are_not_set_twice(tmp_path, limits):
    groups = {"pids": "/p", "memory": "/m"}

    confined(tmp_path, limits, memory_bytes=5, has_mounts=True, groups=groups)

    assert set(limits) == {"kept", resource.RLIMIT_CORE, resource.RLIMIT_NOFILE}


@pytest.mark.parametrize("part", ["unshare", "read only", "ruleset", "landlock", "seccomp"])
def test_part_that_fails_is_an_error(tmp_path, limits, part):
    with pytest.raises(OSError, match=f"{part} is not permitted"):
        confined(tmp_path, limits, part, landlock=7, has_mounts=True)


def test_only_kept_descriptors_stay_open(tmp_path):
    kept, other = (os.open(tmp_path, os.O_RDONLY) for _ in range(2))
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        confinement.close_others([writer, kept])
        names = [path.name for path in pathlib.Path("/proc/self/fd").iterdir()]
        os.write(writer, " ".join(names).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    found = os.read(reader, 1000).decode()

    assert str(other) not in found.split()
    assert {str(kept), str(writer)} <= set(found.split())
    assert pathlib.Path(f"/proc/self/fd/{other}").exists()
    for descriptor in (kept, other, reader):
        os.close(descriptor)
