# SPDX-License-Identifier: Apache-2.0
"""Forks the zygote of workers off a server that has imported no more than workers need.

As a program of its own, the zygote would import the same modules again: 0.25 s of processor time.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pytriton.runtime.executor.python_process import can_fork_workers, fork_zygote
from pytriton.runtime.worker_process.zygote import run_in_fork
from pytriton.serving.server.process.resources import open_missing_streams, raise_limit

if TYPE_CHECKING:
    from pytriton.runtime.executor.python_process import StartedZygote


def fork_worker_zygote() -> StartedZygote | None:
    """Fork the zygote, if that is safe in this process; else it is started when it is needed.

    Before that, this raises the limit of file descriptors for both.
    """
    raise_limit()
    open_missing_streams()
    if threading.active_count() > 1 or not can_fork_workers():
        return None
    return fork_zygote(run_in_fork)
