# SPDX-License-Identifier: Apache-2.0
"""What the process that forks workers keeps for each one in a sandbox, from its fork to its end.

That is a scratch folder, the control groups with its limits, and the pipes of its output. A worker
gets pipes, because it could cut a log file short that it has inherited, or type into a terminal.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from pytriton.base.sandbox import SandboxPolicy
from pytriton.runtime.sandbox.confinement import Kernel, confine
from pytriton.runtime.sandbox.kernel import LinuxKernel

GROUP_PREFIX = "pytriton-worker-"
_STREAMS = (1, 2)
_READ_BYTES = 64 << 10
# Of a worker that has ended: what a pipe holds at most, and what its processes may add meanwhile.
_LAST_READS = 64
_PIPE_BYTES = 4096  # a pipe that is said to have room takes as many
_PATIENCE_S = 1.0  # with a reader of our own output that does not read
# By controller, the files of limits in versions 2 and 1 of control groups.
LIMIT_FILES = {
    "pids": ("pids.max", "pids.max"),
    "memory": ("memory.max", "memory.limit_in_bytes"),
}


class Enclosure:
    """The sandbox of one worker, in the process that forks it and in the worker."""

    def __init__(self, policy: SandboxPolicy, kernel: Kernel | None = None) -> None:
        self._policy = policy
        self._kernel: Kernel = LinuxKernel() if kernel is None else kernel
        self._scratch = ""
        self._groups: list[Path] = []
        self._streams: dict[int, int] = {}  # what is read for a stream of ours, by descriptor
        self._writers: list[int] = []

    @property
    def outputs(self) -> Sequence[int]:
        """The descriptors to read what the worker prints."""
        return tuple(self._streams)

    def open(self) -> None:
        """Make what the worker needs; raises OSError, and leaves nothing behind then."""
        self._kernel.adopt_orphans()  # those of the worker, when it has ended
        try:
            self._scratch = tempfile.mkdtemp(dir=self._policy.scratch_folder)
            for folder, limits in group_limits(self._policy).items():
                self._groups.append(_make_group(Path(folder), limits))
            for stream in _STREAMS:
                reader, writer = os.pipe()
                self._streams[reader] = stream
                self._writers.append(writer)
                os.set_blocking(reader, False)
        except OSError:
            self.on_forked()
            self.close()
            raise

    def on_forked(self) -> None:
        """Close the worker's ends of the pipes in this process."""
        for descriptor in self._writers:
            os.close(descriptor)
        self._writers = []

    def enter(self, kept: Sequence[int]) -> str:
        """Confine the worker, in the worker; returns why that is not possible, or ""."""
        for stream, writer in zip(_STREAMS, self._writers, strict=True):
            os.dup2(writer, stream)
        for name, stream in (("stdout", 1), ("stderr", 2)):
            reopened = _reopened(getattr(sys, name), stream)
            setattr(sys, name, reopened)
            setattr(sys, f"__{name}__", reopened)  # one that nobody has is closed
        try:
            for group in self._groups:
                (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
            confine(self._policy, self._scratch, kept, self._kernel)
        except OSError as error:
            return f"Its sandbox cannot be applied: {error}"
        return ""

    def forward(self, descriptor: int) -> bool:
        """Print what the worker has printed; returns False when nothing more will come."""
        return self._copy(descriptor) != b""

    def _copy(self, descriptor: int) -> bytes | None:
        """Copy a part of the output; returns None if there is none now, b"" at its end."""
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return None
        _write(self._streams[descriptor], data)
        return data

    def close(self) -> int | None:
        """Remove all of it after the worker has ended; returns the process that still does."""
        for descriptor in self._streams:
            for _ in range(_LAST_READS):
                if not self._copy(descriptor):
                    break
            os.close(descriptor)
        self._streams = {}
        for group in self._groups:
            _remove_group(group)
        self._groups = []
        scratch, self._scratch = self._scratch, ""
        return remove_folder(scratch) if scratch else None

    def __repr__(self) -> str:
        return f"<Enclosure {self._scratch}>"


def _write(stream: int, data: bytes) -> None:
    """Write to a stream of this process; what nobody takes is lost, as other output is then."""
    view = memoryview(data)
    with contextlib.suppress(OSError):  # it is closed, or its disk is full
        # Another process may have made the stream one that does not block.
        while view and select.select([], [stream], [], _PATIENCE_S)[1]:
            with contextlib.suppress(BlockingIOError):  # there is less room than this
                view = view[os.write(stream, view[:_PIPE_BYTES]) :]


def _reopened(stream: TextIO, descriptor: int) -> TextIO:
    """Returns a stream for what is behind a descriptor now: a file has a position, a pipe none."""
    return open(
        descriptor,
        "w",
        buffering=1,
        encoding=stream.encoding,
        errors=stream.errors,
        closefd=False,
    )


def group_limits(policy: SandboxPolicy) -> dict[str, dict[str, int]]:
    """Returns the limits by folder and controller: version 2 has one folder for all controllers."""
    limits = {"pids": policy.processes, "memory": policy.memory_bytes}
    found: dict[str, dict[str, int]] = {}
    for controller, folder in policy.groups.items():
        if (limit := limits[controller]) is not None:
            found.setdefault(folder, {})[controller] = limit
    return found


def _make_group(folder: Path, limits: Mapping[str, int]) -> Path:
    group = folder / f"{GROUP_PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
    group.mkdir()
    try:
        for controller, limit in limits.items():
            name = next(each for each in LIMIT_FILES[controller] if (group / each).exists())
            (group / name).write_text(str(limit), encoding="ascii")
    except (OSError, StopIteration) as error:
        group.rmdir()
        raise OSError(errno.EIO, f"{group} takes no limits of {', '.join(limits)}") from error
    return group


def _remove_group(group: Path) -> None:
    with contextlib.suppress(OSError):  # older kernels lack this; its processes are killed anyway
        (group / "cgroup.kill").write_text("1", encoding="ascii")
    with contextlib.suppress(OSError):  # a process is still ending; the next start removes it
        group.rmdir()


def remove_folder(folder: str) -> int | None:
    """Remove a scratch folder, in another process if it has contents; returns that process."""
    try:
        os.rmdir(folder)  # noqa: PTH106  on a file system of its own, the contents ended with it
    except FileNotFoundError:
        return None
    except OSError:
        pass
    else:
        return None
    pid = os.fork()
    if pid == 0:
        # Whatever is in it: any depth, any number of files, folders without rights, links.
        for command in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            with contextlib.suppress(OSError):
                subprocess.run([*command, "--", folder], check=False, capture_output=True)
        os._exit(0)
    return pid


def remove_abandoned_groups(folders: Iterable[str]) -> None:
    """Remove the control groups of processes that were killed before they could."""
    for folder in dict.fromkeys(folders):
        for group in Path(folder).glob(f"{GROUP_PREFIX}*"):
            owner = group.name.removeprefix(GROUP_PREFIX).partition("-")[0]
            if not Path(f"/proc/{owner}").exists():
                with contextlib.suppress(OSError):  # processes of it are left
                    group.rmdir()
