# SPDX-License-Identifier: Apache-2.0
"""Finds which parts of a sandbox this machine has, in a process of its own, as that changes.

`python -m pytriton.runtime.sandbox.probe` prints the parts as JSON.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from pytriton.base.package import IMPORT_FOLDER
from pytriton.base.sandbox import SandboxMachine
from pytriton.runtime.sandbox.enclosure import GROUP_PREFIX, LIMIT_FILES
from pytriton.runtime.sandbox.kernel import LinuxKernel

_TIMEOUT_S = 60.0
_SCRATCH_BYTES = 1 << 20
_MODULE = "pytriton.runtime.sandbox.probe"
_BOOTSTRAP = (
    "import importlib, sys; sys.path[0] = sys.argv.pop(1); "
    "importlib.import_module(sys.argv.pop(1)).main()"
)


def probe() -> SandboxMachine:
    """Returns what this machine has; takes a tenth of a second.

    Raises:
        RuntimeError: The process that looks could not do it.
    """
    system = platform.system()
    if system != "Linux":
        return SandboxMachine(system=system, processor=platform.machine())
    command = [sys.executable, "-c", _BOOTSTRAP, IMPORT_FOLDER, _MODULE]
    try:
        asked = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=_TIMEOUT_S
        )
        return msgspec.json.decode(asked.stdout, type=SandboxMachine)
    except subprocess.CalledProcessError as error:
        text = error.stderr.decode(errors="replace")
        raise RuntimeError(f"the parts of a sandbox cannot be found: {text}") from error
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError) as error:
        raise RuntimeError(f"the parts of a sandbox cannot be found: {error}") from error


def main() -> None:
    """Print what this machine has. This process has mounts of its own afterwards."""
    kernel = LinuxKernel()
    groups = find_groups()
    problem = _try_mounts(kernel)
    machine = SandboxMachine(
        system=platform.system(),
        processor=kernel.processor,
        is_root=os.getuid() == 0,
        landlock=kernel.landlock_version(),
        has_filters=kernel.has_filters(),
        has_mounts=not problem,
        mounts_problem=problem,
        groups=groups,
    )
    sys.stdout.write(msgspec.json.encode(machine).decode())


def _try_mounts(kernel: LinuxKernel) -> str:
    """Do what a worker would do; returns why that fails, or ""."""
    with tempfile.TemporaryDirectory(prefix="pytriton-probe-") as folder:
        pid = os.fork()
        if pid == 0:
            try:
                kernel.unshare_mounts()
                kernel.set_read_only("/", is_read_only=True)
                kernel.mount_memory(folder, _SCRATCH_BYTES, 16)
            except OSError as error:
                sys.stderr.write(str(error))
                os._exit((error.errno or 1) & 0x7F)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return os.strerror(code) if code > 0 else "" if code == 0 else "killed"


def find_groups(
    membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> dict[str, str]:
    """Returns the folders in which this process can make control groups, by controller."""
    found: dict[str, str] = {}
    for controllers, folder in _candidates(membership, root):
        wanted = [name for name in controllers if name in LIMIT_FILES and name not in found]
        if wanted and _can_limit(folder, wanted):
            found.update(dict.fromkeys(wanted, str(folder)))
    return found


def _candidates(membership: Path, root: Path) -> Iterator[tuple[list[str], Path]]:
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, names, path = line.split(":", 2)
        if names:  # version 1: each set of controllers is mounted in a folder of that name
            controllers = names.split(",")
            mounts = [root / names, *(root / name for name in controllers)]
            yield from ((controllers, mount / path.lstrip("/")) for mount in dict.fromkeys(mounts))
        else:
            own = root / path.lstrip("/")
            # A group with processes of its own cannot limit groups inside of it, so the group of
            # the server is one beside those of workers.
            yield from ((list(LIMIT_FILES), folder) for folder in (own, own.parent))


def _can_limit(folder: Path, controllers: list[str]) -> bool:
    group = folder / f"{GROUP_PREFIX}{os.getpid()}-probe"
    try:
        if not folder.is_dir():
            return False
        group.mkdir()
    except OSError:
        return False
    try:
        has_files = all(
            any((group / name).exists() for name in LIMIT_FILES[each]) for each in controllers
        )
        return has_files and os.access(group / "cgroup.procs", os.W_OK)
    finally:
        group.rmdir()
