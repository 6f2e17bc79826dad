# SPDX-License-Identifier: Apache-2.0
"""Decides which files a worker needs, and makes its policy of that. Does no I/O of its own.

Landlock can only allow: what lies in an allowed folder is allowed. So a folder that holds something
to be kept out, such as a virtual environment with the model repository inside, is replaced by what
else is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePosixPath

import msgspec

from pytriton.base.sandbox import (
    DEFAULT_FILES,
    DEFAULT_PROCESSES,
    DEFAULT_SCRATCH_BYTES,
    Grants,
    SandboxMachine,
    SandboxPolicy,
)

# Programs, libraries and what these read of the machine. Nothing here is private to a user.
SYSTEM_PLACES = (
    "/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/nix/store", "/gnu/store",
    "/opt/nvidia", "/opt/rocm", "/opt/intel",
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload",
    "/etc/alternatives", "/etc/localtime", "/etc/timezone", "/etc/locale.alias", "/etc/mime.types",
    "/etc/os-release", "/etc/debian_version", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf",
    "/etc/hosts", "/etc/host.conf", "/etc/hostname", "/etc/resolv.conf", "/etc/gai.conf",
    "/etc/services", "/etc/protocols", "/run/systemd/resolve/stub-resolv.conf",
    "/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs",
    "/etc/pki/tls/openssl.cnf", "/etc/pki/ca-trust/extracted", "/etc/ca-certificates",
    "/etc/fonts", "/etc/nvidia", "/etc/OpenCL", "/etc/vulkan",
    "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/loadavg", "/proc/uptime",
    "/proc/version", "/proc/filesystems", "/proc/devices", "/proc/modules", "/proc/driver/nvidia",
    "/proc/driver/nvidia-uvm", "/proc/driver/nvidia-caps", "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/ngroups_max", "/proc/sys/kernel/cap_last_cap", "/proc/sys/kernel/pid_max",
    "/proc/sys/kernel/threads-max", "/proc/sys/kernel/random", "/proc/sys/kernel/numa_balancing",
    "/proc/sys/vm/overcommit_memory", "/proc/sys/vm/max_map_count", "/proc/sys/vm/mmap_min_addr",
    "/sys/devices/system", "/sys/kernel/mm/transparent_hugepage", "/sys/kernel/mm/hugepages",
    "/sys/fs/cgroup", "/sys/bus/pci", "/sys/class/drm", "/sys/class/kfd", "/sys/class/accel",
    "/sys/module/nvidia", "/sys/module/nvidia_uvm", "/sys/module/amdgpu",
)  # fmt: skip
# Of GPUs: their folders in /sys have the addresses of the buses that they are on.
SYSTEM_PATTERNS = ("/sys/devices/pci*",)
DEVICES = (
    "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom",
    "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset",
    "/dev/nvidia-caps", "/dev/dri", "/dev/kfd", "/dev/accel", "/dev/dxg",
)  # fmt: skip
DEVICE_PATTERNS = ("/dev/nvidia[0-9]*",)


class InterpreterPlaces(msgspec.Struct, frozen=True):
    """The folders of a Python with its packages."""

    prefixes: tuple[str, ...]  # of the environment, and of the Python that it was made of
    search_paths: tuple[str, ...]  # where it looks for modules
    executable: str


class ModelPlaces(msgspec.Struct, frozen=True):
    """The folders of a model: its own, that of its backend, that of its environment."""

    folders: tuple[str, ...]


Listing = Callable[[str], Sequence[str]]


def make_policy(
    grants: Grants,
    machine: SandboxMachine,
    interpreter: InterpreterPlaces,
    model: ModelPlaces,
    *,
    kept_out: Sequence[str],
    listing: Listing,
    resolve: Callable[[str], str] = str,
    found: Sequence[str] = (),
    found_devices: Sequence[str] = (),
    scratch_folder: str = "/tmp",  # noqa: S108  only if nobody names another
) -> SandboxPolicy:
    """Returns the policy of a worker.

    Args:
        grants: What it is granted beyond the minimum.
        machine: The parts of a sandbox that this machine has.
        interpreter: The server's Python, with our package.
        model: The folders of its model.
        kept_out: Paths that no place of this machine or of the Python may include: repositories,
            keys, the home of the user. What is granted by name is not affected.
        listing: Returns the paths in a folder, without links, whose targets are judged by their own
            paths; called for places that must be taken apart.
        resolve: Follows the links in a path. The paths that are kept out have none.
        found: The files of `SYSTEM_PATTERNS` that this machine has.
        found_devices: The files of `DEVICE_PATTERNS` that this machine has.
        scratch_folder: The folder in which those of workers are made.
    """
    places = (
        *SYSTEM_PLACES,
        *found,
        *interpreter.prefixes,
        *(path for path in interpreter.search_paths if path),
        interpreter.executable,
    )
    without = [PurePosixPath(each) for each in kept_out]
    resolved = dict.fromkeys(resolve(place) for place in places)
    shared = [part for place in resolved for part in around(place, without, listing)]
    own = (*model.folders, *grants.readable)
    return SandboxPolicy(
        readable=tuple(dict.fromkeys((*without_nested(shared), *own))),
        writable=grants.writable,
        devices=(*DEVICES, *found_devices, *grants.devices),
        has_network=grants.has_network,
        has_unix=grants.has_unix,
        memory_bytes=grants.memory_bytes,
        processes=grants.processes or DEFAULT_PROCESSES,
        files=grants.files or DEFAULT_FILES,
        scratch_bytes=grants.scratch_bytes or DEFAULT_SCRATCH_BYTES,
        landlock=machine.landlock,
        has_mounts=machine.has_mounts,
        groups=machine.groups,
        scratch_folder=scratch_folder,
    )


def around(place: str, without: Sequence[PurePosixPath], listing: Listing) -> Iterator[str]:
    """Returns a place, or the parts of it that have nothing in common with what is kept out."""
    path = PurePosixPath(place)
    inside = [each for each in without if each.is_relative_to(path)]
    if not inside:
        # A folder inside of one that is kept out, such as a virtual environment in a home folder,
        # was named by itself.
        yield place
        return
    if path in inside:
        return
    for child in listing(place):
        yield from around(child, inside, listing)


def without_nested(places: Iterable[str]) -> list[str]:
    """Returns places without those that lie in others."""
    kept: dict[PurePosixPath, None] = {}
    for path in sorted({PurePosixPath(place) for place in places}):
        if not any(parent in kept for parent in path.parents):
            kept[path] = None
    return [str(path) for path in kept]
