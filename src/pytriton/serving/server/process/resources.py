# SPDX-License-Identifier: Apache-2.0
"""Resources of this process: cores, memory, file descriptors, standard streams.

A container limits processor time and memory by its control group, which `os.cpu_count` does not
see; `root` is the folder that contains `proc` and `sys`.

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
from typing import TextIO

from pytriton.base.control_groups import core_limit, memory_limit, scheduled_cores

# Some programs close every possible descriptor one by one when they start another program. That
# takes minutes with the limit of 2**30 that some container runtimes set.
_HIGHEST_LIMIT = 1 << 20
# macOS refuses a soft limit above OPEN_MAX if the hard limit is infinite (setrlimit(2)).
_OPEN_MAX = 10240
_MAX_RESERVED = 1024


def usable_cores(root: pathlib.Path = pathlib.Path("/")) -> int:
    """Returns the number of cores that this process may use, at least 1."""
    present, limit = scheduled_cores(), core_limit(root)
    # The part of a core beyond a whole number is left for the kernel and other processes.
    return present if limit is None else max(1, min(present, math.floor(limit)))


def usable_memory(root: pathlib.Path = pathlib.Path("/")) -> int:
    """Returns the bytes of memory that this process may use: of the machine, or of its groups."""
    machine, limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), memory_limit(root)
    return machine if limit is None else min(machine, limit)


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
