# SPDX-License-Identifier: Apache-2.0
"""A process with memory of a device, which it exports: what a client of CUDA shared memory has.

It is a process of its own because a library that stands for CUDA's driver cannot be unloaded. It
reads a command on each line, and answers with one.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys

import numpy as np

from pytriton.runtime.cuda import driver as cuda_driver
from tests.cuda.fake_library import environment
from tests.e2e.waiting import DEADLINE_S


class DeviceProcess:
    """The process, as tests see it."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cuda.device_process"],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def allocate(self, size):
        """Allocate memory; returns its address, and its handle."""
        address, handle = self._ask("allocate", size).split()
        return int(address), bytes.fromhex(handle)

    def write(self, address, array):
        self._ask("write", address, array.tobytes().hex())

    def read(self, address, shape, dtype=np.float32):
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.frombuffer(bytes.fromhex(self._ask("read", address, size)), dtype).reshape(shape)

    def free(self, address):
        self._ask("free", address)

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(DEADLINE_S)

    def kill(self):
        self._process.kill()
        self._process.wait(DEADLINE_S)

    def _ask(self, *words):
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()


def main():
    driver = cuda_driver.load()
    with driver.using(0):
        for line in sys.stdin:
            command, *words = line.split()
            answer = "done"
            if command == "allocate":
                address = driver.allocate(int(words[0]))
                answer = f"{address} {driver.export_memory(address).hex()}"
            elif command == "write":
                data = bytes.fromhex(words[1])
                source = ctypes.create_string_buffer(data, len(data))
                driver.copy_to_device(int(words[0]), ctypes.addressof(source), len(data))
            elif command == "read":
                target = ctypes.create_string_buffer(int(words[1]))
                driver.copy_to_host(ctypes.addressof(target), int(words[0]), int(words[1]))
                answer = target.raw.hex()
            elif command == "free":
                driver.free(int(words[0]))
            sys.stdout.write(f"{answer}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
