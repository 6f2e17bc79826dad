# SPDX-License-Identifier: Apache-2.0
"""Pauses of threads at random, which make rare races likely: `scripts/test tests/e2e --pauses 7`.

A thread pauses before and after it does what others can see: sends or receives, sets an event or a
result, begins. So others see it long before the thread goes on, or long after they expect it.
Python imports this module by itself in each process that a test starts, as the folder is then in
PYTHONPATH.
"""

from __future__ import annotations

import concurrent.futures
import functools
import os
import pathlib
import queue
import random
import socket
import threading
import time

SEED = "PYTRITON_TEST_PAUSES"
SHARE = 0.2  # of the operations have a pause before them, and as many one after them
MAX_S = 0.04
MAX_PAUSES = 40  # in each process, and there for each test

OPERATIONS = {
    socket.socket: (
        "send", "sendall", "sendmsg", "recv", "recv_into", "recvmsg", "connect", "shutdown",
        "close",
    ),
    threading.Event: ("set",),
    threading.Condition: ("notify",),
    threading.Thread: ("start", "run"),
    queue.Queue: ("put",),
    concurrent.futures.Future: ("set_result", "set_exception"),
}  # fmt: skip


class Pauses:
    """How many pauses are left to a process."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(f"{seed} {os.getpid()}")
        self._sleep = time.sleep  # tests may replace it
        self.left = MAX_PAUSES

    def pause(self) -> None:
        """Pause now, or not."""
        if self.left > 0 and self._random.random() < SHARE:
            self.left -= 1
            self._sleep(self._random.random() * MAX_S)

    def around(self, operation):
        """The same operation with pauses before and after it."""

        @functools.wraps(operation)
        def paused(*args, **kwargs):
            self.pause()
            result = operation(*args, **kwargs)
            self.pause()
            return result

        return paused


def begin(seed: str) -> Pauses:
    """Begin to pause threads of this process, and of all that it starts."""
    folder = str(pathlib.Path(__file__).parent)
    if SEED not in os.environ:
        others = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{others}" if others else folder
        os.environ[SEED] = seed
    pauses = Pauses(seed)
    for owner, names in OPERATIONS.items():
        for name in names:
            setattr(owner, name, pauses.around(getattr(owner, name)))
    return pauses


if SEED in os.environ:
    of_this_process = begin(os.environ[SEED])
