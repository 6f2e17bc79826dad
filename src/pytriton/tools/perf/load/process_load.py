# SPDX-License-Identifier: Apache-2.0
"""The load of a plan, made in processes of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.shared_memory import SharedMemory
from typing import IO, TYPE_CHECKING, Protocol

import numpy as np

from pytriton.base.lazy_module import LazyModule
from pytriton.base.package import IMPORT_FOLDER
from pytriton.client.kserve.address import Address
from pytriton.client.kserve.errors import ErrorWords, HttpReply
from pytriton.client.kserve.http_client import kserve_client
from pytriton.client.kserve.records import KserveClient
from pytriton.tools.perf.errors import GeneratorError
from pytriton.tools.perf.load.driver import check_level
from pytriton.tools.perf.load.plan import (
    Concurrency,
    Level,
    LoadPlan,
    PeriodicConcurrency,
    RequestRate,
    TensorMemory,
)
from pytriton.tools.perf.load.recipe import (
    ControlClosedError,
    LevelDone,
    LoadMessageInbox,
    Order,
    Ready,
    Recipe,
    Report,
    StartLoad,
    StopLoad,
    Take,
    TakeLevel,
    Taken,
    decode_report,
    send,
)
from pytriton.tools.perf.load.records import Records, merged
from pytriton.tools.perf.load.requests import address_of, check_plan, recipe_of, tensors_of

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


# In place of the current folder, where a user's files could be named like modules.
_BOOTSTRAP = (
    "import sys; sys.path[0] = sys.argv[1]; "
    "from pytriton.tools.perf.load.worker import main; main(int(sys.argv[2]))"
)
_CORES_PER_PROCESS = 4  # the server and its models need the others
_MAX_PROCESSES = 16
_CONCURRENCY_PER_PROCESS = 16
_RATE_PER_PROCESS = 5000
_END_TIMEOUT_S = 5.0
_ANSWERS_TIMEOUT_S = 10.0  # a server that hangs must not keep a run from its end


class ProcessLoad:
    """Makes load, level after level, and records each request; used by one thread.

    All times are those of `now_ns`.

    Args:
        plan: What is sent where.
        recipe: Its requests, if they are not those that the plan's inputs make.
    """

    def __init__(self, plan: LoadPlan, recipe: Recipe | None = None) -> None:
        self._plan = plan
        self._recipe: Recipe | None = recipe
        self._regions: SharedRegions | None = None
        self._workers: list[_WorkerProcess] = []
        self._active = 0  # the first so many processes share the level
        self._level_number = 0
        self._is_stopped = False

    def start(self, level: Level, requests: int | None = None) -> None:
        """Begin to send requests.

        Args:
            level: How much load.
            requests: Send exactly so many, then no more; None: until the level changes.

        Raises:
            GeneratorError: The plan is not possible, or the server cannot be reached.
        """
        check_level(level)
        try:
            if self._recipe is None:
                check_plan(self._plan)
                address = address_of(self._plan)
                self._recipe = recipe_of(self._plan, address, self._open_regions(address))
            self.change(level, requests)
        except BaseException:
            self.stop(at_once=True)
            raise

    def _open_regions(self, address: Address) -> list[dict[str, str]]:
        if self._plan.shared_memory is TensorMemory.NONE:
            return []
        self._regions = SharedRegions(self._plan, address)
        return self._regions.open()

    def change(self, level: Level, requests: int | None = None) -> None:
        """TakeLevel the level as in `start`; connections and requests under way stay.

        Raises:
            GeneratorError: The level is not possible, or a process of the generator died.
        """
        check_level(level)
        recipe = self._recipe
        if recipe is None or self._is_stopped:
            raise GeneratorError("expected a load that was started and not stopped")
        needed = processes_for(self._plan, level, os.cpu_count() or 1)
        while len(self._workers) < needed:
            worker = _WorkerProcess()
            self._workers.append(worker)
            worker.start(recipe)
        self._level_number += 1
        for number, worker in enumerate(self._workers):
            if number < needed:
                change = TakeLevel(level, requests, number, needed, self._level_number)
            else:  # not needed for this level
                change = TakeLevel(Concurrency(0), 0, 0, 1, self._level_number)
            worker.send(change)
        self._active = needed

    def wait(self, seconds: float) -> bool:
        """Wait, and let the load go on.

        Args:
            seconds: The longest time; it ends sooner if all that the level asks for has ended.

        Returns:
            Whether all that the level asks for has ended; never for levels without an end.

        Raises:
            GeneratorError: A process of the generator died.
        """
        deadline = time.monotonic() + seconds
        while not self._is_done():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            sockets = {worker.connection: worker for worker in self._workers}
            readable, _, _ = select.select(list(sockets), [], [], left)
            for connection in readable:
                sockets[connection].receive()
        return True

    def _is_done(self) -> bool:
        number = self._level_number
        return all(worker.done_number == number for worker in self._workers[: self._active])

    def take(self) -> Records:
        """The requests that ended since the last call.

        Raises:
            GeneratorError: A process of the generator died.
        """
        for worker in self._workers:
            worker.send(Take())
        return self._merged([worker.receive_taken() for worker in self._workers])

    def _merged(self, parts: list[Taken]) -> Records:
        if not parts or self._recipe is None:
            return Records(taken_ns=self.now_ns(), since_ns=self.now_ns())
        return merged(self._recipe, parts, is_done=self._is_done())

    def now_ns(self) -> int:
        """The clock of the records: that of `time.monotonic_ns`."""
        return time.monotonic_ns()

    def stop(self, *, at_once: bool = False) -> Records:
        """End the load and the processes that make it; may be called twice.

        Args:
            at_once: True gives up the requests under way; False waits some seconds for their
                answers, unless an interrupt comes.

        Returns:
            The requests that ended since the last `take`.
        """
        self._is_stopped = True
        parts: list[Taken] = []
        try:
            self._tell_to_stop(at_once=at_once)
            if not at_once and not self._wait_for_last():
                self._tell_to_stop(at_once=True)
            for worker in self._workers:
                with contextlib.suppress(GeneratorError):
                    parts.append(worker.receive_taken(is_last=True))
        finally:  # an interrupt leaves neither processes nor shared memory
            for worker in self._workers:
                worker.end()
            self._workers = []
            if self._regions is not None:
                self._regions.close()
        return self._merged(parts)

    def _tell_to_stop(self, *, at_once: bool) -> None:
        # A process that is gone has nothing to tell; what others recorded is returned.
        for worker in self._workers:
            with contextlib.suppress(GeneratorError):
                worker.send(StopLoad(at_once))

    def _wait_for_last(self) -> bool:
        """Wait for the requests under way; returns False if they take too long."""
        deadline = time.monotonic() + _ANSWERS_TIMEOUT_S
        waiting = {worker.connection: worker for worker in self._workers}
        while waiting:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            for connection in select.select(list(waiting), [], [], left)[0]:
                try:
                    waiting[connection].receive()
                except GeneratorError:  # noqa: PERF203  each process may be gone
                    del waiting[connection]
                else:
                    if waiting[connection].has_last:
                        del waiting[connection]
        return True


def processes_for(plan: LoadPlan, level: Level, cores: int) -> int:
    """How many processes make a level; one, unless there are cores and the level needs them."""
    if isinstance(level, PeriodicConcurrency):
        return 1
    limit = plan.processes or max(1, cores // _CORES_PER_PROCESS)
    if isinstance(level, Concurrency):
        useful = level.number if plan.processes else level.number // _CONCURRENCY_PER_PROCESS
    elif isinstance(level, RequestRate) and not plan.processes:
        useful = int(level.per_second // _RATE_PER_PROCESS)
    else:
        useful = plan.processes
    return max(1, min(limit, useful, _MAX_PROCESSES))


class _WorkerProcess:
    """One process that makes load.

    Attributes:
        done_number: The number of the last level whose end it told.
        connection: The socket to it.
    """

    def __init__(self) -> None:
        self.done_number = 0
        self.connection: socket.socket
        self._inbox: LoadMessageInbox[Report]
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._taken: Taken | None = None

    def start(self, recipe: Recipe) -> None:
        """Start it, and wait until it has reached the server.

        Raises:
            GeneratorError: the server cannot be reached, or the process ended.
        """
        self.connection, theirs = socket.socketpair()
        self._inbox = LoadMessageInbox(self.connection, decode_report)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed in `end`
        fd = theirs.fileno()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, IMPORT_FOLDER, str(fd)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                pass_fds=(fd,),
                start_new_session=True,  # Ctrl-C is for the measuring process
            )
        self.send(StartLoad(recipe))
        ready = self._receive()
        assert isinstance(ready, Ready)
        if ready.problem:
            raise GeneratorError(f"cannot reach {recipe.host}:{recipe.port}: {ready.problem}")

    def send(self, order: Order) -> None:
        try:
            send(self.connection, order)
        except ControlClosedError as error:
            raise self._died() from error

    def receive(self) -> None:
        """Take one message of the process."""
        report = self._receive()
        if isinstance(report, LevelDone):
            self.done_number = report.number
        elif isinstance(report, Taken):
            self._taken = report

    @property
    def has_last(self) -> bool:
        """Whether its last records have come."""
        return self._taken is not None and self._taken.is_last

    def receive_taken(self, *, is_last: bool = False) -> Taken:
        """Wait for the records that were asked for."""
        while self._taken is None or (is_last and not self.has_last):
            self.receive()
        taken, self._taken = self._taken, None
        return taken

    def end(self) -> None:
        """Make sure that the process is gone."""
        if self._process is None:
            return
        self.connection.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        if self._log is not None:
            self._log.close()

    def _receive(self) -> Report:
        try:
            return self._inbox.receive()
        except ControlClosedError as error:
            raise self._died() from error

    def _died(self) -> GeneratorError:
        text = ""
        if self._log is not None and not self._log.closed:
            self._log.seek(0)
            text = self._log.read().decode("utf-8", "replace").strip()
        last = text.splitlines()[-1] if text else "it said nothing"
        return GeneratorError(f"the process that makes the load ended: {last}")
