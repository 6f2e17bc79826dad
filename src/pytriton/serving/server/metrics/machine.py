# SPDX-License-Identifier: Apache-2.0
"""The metric families of the machine: memory pool, CPU and memory, GPUs, acceptance of clients.

NVIDIA's driver may take long to answer, so it is asked in threads of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pytriton.serving.server.metrics.exposition import MetricSample, SampleFamily, gauge

logger = logging.getLogger(__name__)
# The kind, name and help of each family of GPUs, and the field of `DeviceReading`.
_GPU_FAMILIES = (
    ("gauge", "nv_gpu_utilization", "GPU utilization rate [0.0 - 1.0)", "utilization"),
    ("gauge", "nv_gpu_memory_total_bytes", "GPU total memory, in bytes", "memory_total_bytes"),
    ("gauge", "nv_gpu_memory_used_bytes", "GPU used memory, in bytes", "memory_used_bytes"),
    ("gauge", "nv_gpu_power_usage", "GPU power usage in watts", "power_usage_w"),
    ("gauge", "nv_gpu_power_limit", "GPU power management limit in watts", "power_limit_w"),
    (
        "counter",
        "nv_energy_consumption",
        "GPU energy consumption in joules since the Triton Server started",
        "energy_j",
    ),
)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """One device; None stands for what it does not tell."""

    uuid: str
    utilization: float | None = None  # from 0.0 to 1.0
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    power_usage_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None  # since the start


class NvmlReader:
    """Reads devices through the module `pynvml`, which is initialised already.

    If CUDA_VISIBLE_DEVICES is set, only these devices are read.
    """

    def __init__(self, nvml: Any, visible: str | None = None) -> None:
        self._nvml = nvml
        all_handles = [
            nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())
        ]
        by_uuid = {_text(nvml.nvmlDeviceGetUUID(handle)): handle for handle in all_handles}
        self._handles = by_uuid
        if visible is not None:
            names = list(by_uuid)
            chosen = [_device(name.strip(), names) for name in visible.split(",")]
            self._handles = {uuid: by_uuid[uuid] for uuid in chosen if uuid is not None}
        self.uuids: Mapping[int, str] = dict(enumerate(self._handles))
        self._energy_at_start = {
            uuid: self._energy_mj(each) for uuid, each in self._handles.items()
        }

    def read(self) -> list[DeviceReading]:
        """Read all devices."""
        return [self._read_device(uuid, handle) for uuid, handle in self._handles.items()]

    def _read_device(self, uuid: str, handle: Any) -> DeviceReading:
        nvml = self._nvml
        rates = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        usage_mw = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        limit_mw = self._ask(nvml.nvmlDeviceGetPowerManagementLimit, handle)
        energy_mj, start_mj = self._energy_mj(handle), self._energy_at_start[uuid]
        has_energy = energy_mj is not None and start_mj is not None
        return DeviceReading(
            uuid=uuid,
            utilization=None if rates is None else rates.gpu / 100,
            memory_total_bytes=None if memory is None else memory.total,
            memory_used_bytes=None if memory is None else memory.used,
            power_usage_w=None if usage_mw is None else usage_mw / 1000,
            power_limit_w=None if limit_mw is None else limit_mw / 1000,
            energy_j=max(0, energy_mj - start_mj) / 1000 if has_energy else None,
        )

    def _energy_mj(self, handle: Any) -> Any:
        return self._ask(self._nvml.nvmlDeviceGetTotalEnergyConsumption, handle)

    def _ask(self, function: Callable[[Any], Any], handle: Any) -> Any:
        """Returns the answer; None if the device does not support the question."""
        try:
            return function(handle)
        except self._nvml.NVMLError:
            return None


def find_gpus(environment: Mapping[str, str] = os.environ) -> NvmlReader | None:
    """Start to use NVML; returns None if there is no GPU, and says why at verbose log levels."""
    try:
        import pynvml  # noqa: PLC0415  an extra of this package, which only servers with GPUs need
    except ImportError as error:
        logger.debug("no metrics of GPUs: %s; pip install 'pytriton[gpu]' installs it", error)
        return None
    try:
        pynvml.nvmlInit()
        return NvmlReader(pynvml, environment.get("CUDA_VISIBLE_DEVICES"))
    except pynvml.NVMLError as error:
        logger.debug("no metrics of GPUs: %s", error)
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _device(name: str, uuids: list[str]) -> str | None:
    """Returns the device that CUDA_VISIBLE_DEVICES names by number or by the start of its UUID."""
    if name.isdecimal():
        return uuids[int(name)] if int(name) < len(uuids) else None
    return next((uuid for uuid in uuids if name and uuid.startswith(name)), None)


@dataclass(frozen=True, slots=True)
class MachineReading:
    """CPU utilization and memory of the whole machine."""

    cpu_utilization: float  # from 0.0 to 1.0, since the previous reading
    memory_total_bytes: int
    memory_used_bytes: int


def read_machine() -> MachineReading:
    """Read the operating system's numbers; the first utilization in a process is 0."""
    import psutil  # noqa: PLC0415  takes 2 MiB, which only a server with scrapes needs

    memory = psutil.virtual_memory()
    return MachineReading(
        cpu_utilization=psutil.cpu_percent() / 100,
        memory_total_bytes=memory.total,
        memory_used_bytes=memory.total - memory.available,
    )


def pool_families(total_bytes: int) -> Iterable[SampleFamily]:
    """Yields the families of the pool of pinned memory.

    The pool is never used: tensors are in memory shared with the instances.
    """
    pool = "Pinned memory pool {} memory size, in bytes"
    yield gauge("nv_pinned_memory_pool_total_bytes", pool.format("total"), total_bytes)
    yield gauge("nv_pinned_memory_pool_used_bytes", pool.format("used"), 0)


def accepting_families(pauses: int, *, is_paused: bool) -> Iterator[SampleFamily]:
    """Yields the families about new clients, which wait while file descriptors are short."""
    yield SampleFamily(
        "nv_accept_pause_count",
        "counter",
        "Number of times that new clients had to wait for file descriptors",
        [MetricSample(pauses, {})],
    )
    yield gauge(
        "nv_accept_paused", "Whether new clients have to wait for file descriptors", int(is_paused)
    )


@dataclass(frozen=True, slots=True)
class LimitReading:
    """One limit of the server; there may be nothing that tells how near it is."""

    name: str
    used: int | None = None
    most: int | None = None  # None: there is no limit
    refusals: int | None = None  # None: nobody is refused, but has to wait


def limit_families(limits: Iterable[LimitReading]) -> Iterator[SampleFamily]:
    """Yields the families that say how near the server is to its limits."""
    readings = list(limits)
    used = "Use of a limit of the server, in bytes or as a number"
    for name, kind, help_text, field in (
        ("nv_limit_used", "gauge", used, "used"),
        ("nv_limit_max", "gauge", "The most that a limit of the server allows", "most"),
        (
            "nv_limit_refusals_total",
            "counter",
            "Number of requests and clients that a limit of the server has refused",
            "refusals",
        ),
    ):
        values = ((limit.name, getattr(limit, field)) for limit in readings)
        samples = [
            MetricSample(value, {"limit": each}) for each, value in values if value is not None
        ]
        yield SampleFamily(name, kind, help_text, samples)


def certificate_families(
    reloads: int, failures: int, expiries: Mapping[str, float], handshakes: Mapping[str, int]
) -> Iterator[SampleFamily]:
    """Yields the families about encrypted ports.

    `expiries` is by file, and `handshakes` has those that failed by reason, of which there are few.
    """
    for name, help_text, count in (
        ("pytriton_tls_reloads_total", "Number of times that a new certificate was read", reloads),
        (
            "pytriton_tls_reload_failures_total",
            "Number of times that a new certificate could not be used",
            failures,
        ),
    ):
        yield SampleFamily(name, "counter", help_text, [MetricSample(count, {})])
    yield SampleFamily(
        "pytriton_tls_certificate_expiry_timestamp_seconds",
        "gauge",
        "When the certificate in a file expires, in seconds since 1970",
        [MetricSample(expiry_s, {"file": path}) for path, expiry_s in expiries.items()],
    )
    yield SampleFamily(
        "pytriton_tls_handshake_failures_total",
        "counter",
        "Number of clients that did not complete their TLS handshake, by reason",
        [MetricSample(count, {"reason": reason}) for reason, count in handshakes.items()],
    )


def cpu_families(machine: MachineReading) -> Iterable[SampleFamily]:
    """Yields the families of the CPU and the memory."""
    memory = "CPU {} memory (RAM), in bytes"
    yield gauge("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", machine.cpu_utilization)
    yield gauge("nv_cpu_memory_total_bytes", memory.format("total"), machine.memory_total_bytes)
    yield gauge("nv_cpu_memory_used_bytes", memory.format("used"), machine.memory_used_bytes)


def gpu_families(gpus: Sequence[DeviceReading]) -> Iterable[SampleFamily]:
    """Yields the families of GPUs; what a device does not tell has no value."""
    for kind, name, help_text, field in _GPU_FAMILIES:
        values = ((gpu.uuid, getattr(gpu, field)) for gpu in gpus)
        samples = [
            MetricSample(value, {"gpu_uuid": uuid}) for uuid, value in values if value is not None
        ]
        yield SampleFamily(name, kind, help_text, samples)


async def call_driver(function: Callable[[], T]) -> T:
    """Returns what a function returns, or raises what it raises.

    `asyncio.to_thread` has other threads: the interpreter waits for them when it exits.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if answer.done():  # nobody waits any more
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]  # it is the function's

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = function()
        except BaseException as raised:  # noqa: BLE001  it is passed on
            error = raised
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=run, name="driver", daemon=True).start()
    return await answer
