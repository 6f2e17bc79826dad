# SPDX-License-Identifier: Apache-2.0
"""The file descriptors of this process: raises their limit, and reserves some for the server.

Every client takes a descriptor. If clients could take all of them, the server could neither start
a process for a model nor share memory with one.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys

# Some programs close every possible descriptor one by one when they start another program. That
# takes minutes with the limit of 2**30 that some container runtimes set.
_HIGHEST_LIMIT = 1 << 20
# macOS refuses a soft limit above OPEN_MAX if the hard limit is infinite (setrlimit(2)).
_OPEN_MAX = 10240
_MAX_RESERVED = 1024


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

    Args:
        is_essential: Whether the clients are those of metrics, which may use half of the reserve.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    reserved = min(soft // 4, _MAX_RESERVED)
    return soft - (reserved // 2 if is_essential else reserved)


def lowest_free(descriptor: int) -> int:
    """Returns the number that the next descriptor would have; `sys.maxsize` if none is free.

    POSIX gives each new descriptor the lowest free number, so all lower numbers are in use.

    Args:
        descriptor: Any open descriptor.
    """
    try:
        free = os.dup(descriptor)
    except OSError:
        return sys.maxsize
    os.close(free)
    return free
