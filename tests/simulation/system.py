# SPDX-License-Identifier: Apache-2.0
"""The modules that code uses of the system, as the simulated machine has them.

Each has what the project calls; other names are those of the real module. The tests of
`test_system.py` and `test_sockets.py` run on these and on the real ones.
"""

from __future__ import annotations

import fcntl as real_fcntl
import mmap as real_mmap
import os as real_os
import queue as real_queue
import resource as real_resource
import secrets as real_secrets
import select as real_select
import signal as real_signal
import socket as real_socket
import subprocess as real_subprocess
import threading as real_threading
import time as real_time
from concurrent import futures as real_futures
from typing import Any

from pytriton.serving.server.shared_memory import region_file
from tests.simulation.commands import Popen
from tests.simulation.machine import Machine
from tests.simulation.mapped_memory import Fcntl, GuardedMapping, Mmap
from tests.simulation.os_calls import Os, Resource, Signal
from tests.simulation.polling import Select
from tests.simulation.sockets import SocketModule
from tests.simulation.stand_in import StandIn, Time
from tests.simulation.threads import Future, SimpleQueue, Threading, ThreadPool


class Secrets(StandIn):
    def token_bytes(self, size: int = 32) -> bytes:
        random = self.machine.random_of(f"secret {self.machine.next_number()}")
        return bytes(int(random.random() * 256) for _ in range(size))

    def token_hex(self, size: int = 32) -> str:
        return self.token_bytes(size).hex()


def stand_ins(machine: Machine) -> dict[Any, Any]:
    """Returns what replaces modules, classes and functions of the real system, by these."""
    of_machine = {"machine": machine}
    time = Time(real_time, machine)
    future = type("Future", (Future,), of_machine)
    pool = type("ThreadPoolExecutor", (ThreadPool,), {**of_machine, "future": future})
    queue = StandIn(real_queue, machine)
    queue.SimpleQueue = simple_queue = type("SimpleQueue", (SimpleQueue,), of_machine)
    subprocess = StandIn(real_subprocess, machine)
    subprocess.Popen = type("Popen", (Popen,), of_machine)
    table = {
        real_time: time,
        real_os: Os(real_os, machine),
        real_socket: SocketModule(real_socket, machine),
        real_select: Select(real_select, machine),
        real_signal: Signal(real_signal, machine),
        real_threading: Threading(real_threading, machine),
        real_fcntl: Fcntl(real_fcntl, machine),
        real_mmap: Mmap(real_mmap, machine),
        real_resource: Resource(real_resource, machine),
        real_queue: queue,
        real_subprocess: subprocess,
        real_secrets: Secrets(real_secrets, machine),
        real_queue.SimpleQueue: simple_queue,
        real_futures.Future: future,
        real_futures.ThreadPoolExecutor: pool,
        region_file.GuardedMapping: type("GuardedMapping", (GuardedMapping,), of_machine),
    }
    for name in ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"):
        table[getattr(real_time, name)] = getattr(time, name)
    table[real_time.sleep] = time.sleep
    return table
