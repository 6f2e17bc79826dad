# SPDX-License-Identifier: Apache-2.0
"""Loopback ports that nothing listens on."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator

# Below the ports that systems give to outgoing connections, which could take one before it is used.
_FIRST, _COUNT = 12_000, 20_000
# Processes that test side by side have ports of their own: one that probes a port of another's
# would make a test fail that expects its server to have freed it.
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_SHARE = _COUNT // _WORKERS
# Test runs side by side begin at different places, and none is given out twice soon.
_offsets = itertools.count(os.getpid() * 7919)


def free_ports(count: int) -> list[int]:
    return list(itertools.islice(_candidates(), count))


def first_of_free_ports(count: int) -> int:
    """A port that is free, as are those after it."""
    first = next(
        port for port in _candidates() if all(map(_is_free, range(port + 1, port + count)))
    )
    for _ in range(count - 1):
        next(_offsets)  # those are taken, too
    return first


def _candidates() -> Iterator[int]:
    for offset in itertools.islice(_offsets, _SHARE):
        port = _FIRST + _WORKER * _SHARE + offset % _SHARE
        if _is_free(port):
            yield port
    raise RuntimeError(f"expected a free port among {_SHARE}, found none")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
