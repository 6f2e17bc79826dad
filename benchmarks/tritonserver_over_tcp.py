# SPDX-License-Identifier: Apache-2.0
"""Usage: tritonserver_over_tcp.py OPTION...   a `tritonserver` whose instances come over TCP.

One on the server's own machine would otherwise share memory with it; this one is as far away as a
single machine allows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NoReturn
from unittest import mock

from pytriton.runtime.executor.remote import instance_port
from pytriton.serving.server.tritonserver import main


@contextlib.contextmanager
def tcp_only() -> Iterator[None]:
    """Servers of this process that start now listen for instances on TCP, and nowhere else."""
    with mock.patch.object(instance_port, "PrivateListener", _refuse):
        yield


def _refuse() -> NoReturn:
    raise OSError("not wanted by this benchmark")


if __name__ == "__main__":
    with tcp_only():
        raise SystemExit(main())
