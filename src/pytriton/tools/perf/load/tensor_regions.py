# SPDX-License-Identifier: Apache-2.0
"""Regions of memory with the tensors of a load, which requests name: of the host, or of a GPU."""

from __future__ import annotations

import contextlib
import os
import secrets
from multiprocessing.shared_memory import SharedMemory
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pytriton.base.lazy_module import LazyModule
from pytriton.client.kserve.address import Address
from pytriton.client.kserve.errors import ErrorWords, HttpReply
from pytriton.client.kserve.http_client import kserve_client
from pytriton.client.kserve.records import KserveClient
from pytriton.tools.perf.errors import GeneratorError
from pytriton.tools.perf.load.plan import LoadPlan, TensorMemory
from pytriton.tools.perf.load.requests import tensors_of

if TYPE_CHECKING:
    from pytriton.runtime.cuda import driver as cuda_driver
    from pytriton.runtime.cuda.driver import Driver
else:  # for those who measure with GPU memory
    cuda_driver = LazyModule("pytriton.runtime.cuda.driver")

_TIMEOUT_S = 30.0
_DEVICE = 0  # as perf_analyzer
# The driver cuts smaller allocations out of blocks of this size, which a handle shares as a whole.
_DEVICE_BLOCK_BYTES = 2 << 20


class SharedRegions:
    """The regions of one load.

    Args:
        plan: What is sent.
        address: The server that they are registered with.
    """

    def __init__(self, plan: LoadPlan, address: Address) -> None:
        self._plan = plan
        headers = dict(plan.headers)
        self._client = kserve_client(address, headers, _TIMEOUT_S, plan.tls, _RegionWords())
        self._memory: _Memory = (
            _DeviceMemory() if plan.shared_memory is TensorMemory.CUDA else _HostMemory()
        )
        self._registered: list[str] = []

    def open(self) -> list[dict[str, str]]:
        """Make and register all regions.

        Returns:
            For each input set, the region of each tensor, by `i:` or `o:` and its name.

        Raises:
            GeneratorError: the server refuses one, or there is no memory for it.
        """
        plan = self._plan
        if not plan.outputs:
            raise GeneratorError("shared memory needs the names of the outputs, got none")
        self._memory.start()
        outputs = {
            f"o:{name}": self._make(bytes(plan.output_region_bytes)) for name in plan.outputs
        }
        sets = [inputs for stream in plan.inputs for inputs in stream]
        return [
            outputs | {f"i:{tensor.name}": self._make(tensor.data) for tensor in tensors_of(each)}
            for each in sets
        ]

    def close(self) -> None:
        """Unregister and remove what was made; may be called twice."""
        for region in self._registered:
            with contextlib.suppress(GeneratorError):  # the server may be gone
                self._memory.unregister(self._client, region)
        self._registered.clear()
        self._client.close()
        self._memory.close()

    def _make(self, data: bytes) -> str:
        # Not the name that Python chooses: servers reserve its prefix. macOS takes 31 characters.
        name = f"perf_{os.getpid()}_{secrets.token_hex(6)}"
        region = f"pytriton_{name}"
        try:
            self._memory.register(self._client, region, name, data)
        except GeneratorError as error:
            raise GeneratorError(
                f"shared memory '{region}' could not be made or registered: {error}"
            ) from error
        self._registered.append(region)
        return region


class _Memory(Protocol):
    """Memory that a server can open; calls of the server raise GeneratorError."""

    def start(self) -> None:
        """Make ready; GeneratorError if this machine does not have such memory."""

    def register(self, client: KserveClient, region: str, name: str, data: bytes) -> None:
        """Put data into new memory, and tell the server of it."""

    def unregister(self, client: KserveClient, region: str) -> None:
        """Have the server forget a region."""

    def close(self) -> None:
        """Free all memory; may be called twice."""


class _HostMemory:
    """System shared memory. See `_Memory`."""

    def __init__(self) -> None:
        self._memories: list[SharedMemory] = []

    def start(self) -> None:
        pass

    def register(self, client: KserveClient, region: str, name: str, data: bytes) -> None:
        memory = SharedMemory(name, create=True, size=max(1, len(data)))
        self._memories.append(memory)
        assert memory.buf is not None
        memory.buf[: len(data)] = data
        client.register_memory(region, f"/{name}", max(1, len(data)))

    def unregister(self, client: KserveClient, region: str) -> None:
        client.unregister_memory(region)

    def close(self) -> None:
        for memory in self._memories:
            memory.close()
            with contextlib.suppress(FileNotFoundError):
                memory.unlink()
        self._memories.clear()


class _DeviceMemory:
    """Memory of a GPU, through CUDA's driver alone. See `_Memory`."""

    def __init__(self) -> None:
        self._driver: Driver | None = None
        self._addresses: list[int] = []

    def start(self) -> None:
        try:
            driver = cuda_driver.load()
            driver.retain_context(_DEVICE)
        except (OSError, cuda_driver.CudaError) as error:
            raise GeneratorError(
                f"CUDA shared memory needs a GPU on this machine: {error}"
            ) from error
        self._driver = driver

    def register(self, client: KserveClient, region: str, name: str, data: bytes) -> None:
        driver = self._driver
        assert driver is not None, "expected memory that was started"
        size = max(1, len(data))
        source = np.frombuffer(data, np.uint8)
        try:
            with driver.using(_DEVICE):
                address = driver.allocate(-(-size // _DEVICE_BLOCK_BYTES) * _DEVICE_BLOCK_BYTES)
                self._addresses.append(address)
                if len(data):
                    driver.copy_to_device(address, source.ctypes.data, len(data))
                driver.synchronize()
                handle = driver.export_memory(address)
        except cuda_driver.CudaError as error:
            raise GeneratorError(str(error)) from error
        client.register_device_memory(region, handle, _DEVICE, size)

    def unregister(self, client: KserveClient, region: str) -> None:
        client.unregister_device_memory(region)

    def close(self) -> None:
        driver, self._driver = self._driver, None
        if driver is None:
            return
        with contextlib.suppress(cuda_driver.CudaError):  # it ends with this process at the latest
            with driver.using(_DEVICE):
                for address in self._addresses:
                    driver.free(address)
            driver.release_context(_DEVICE)
        self._addresses.clear()


class _RegionWords(ErrorWords):
    """Errors of the calls that register regions."""

    def unreachable(self, address: Address, error: Exception, timeout_s: float) -> Exception:
        return GeneratorError(str(error))

    def refused(self, address: Address, reply: HttpReply) -> Exception:
        return GeneratorError(f"HTTP {reply.status}: {reply.text}")

    def call_failed(self, address: Address, code: str, details: str, timeout_s: float) -> Exception:
        return GeneratorError(f"{code}: {details}")
